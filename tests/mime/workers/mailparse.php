<?php
// Reads length-prefixed mails and answers each with a line of JSON: what PHP's mailparse finds in it.
error_reporting(0);

function found(string $mail): array
{
    $found = [];
    $message = mailparse_msg_create();
    mailparse_msg_parse($message, $mail);
    foreach (mailparse_msg_get_structure($message) as $number) {
        $part = mailparse_msg_get_part($message, $number);
        $about = mailparse_msg_get_part_data($part);
        $name = mb_scrub((string)($about['disposition-filename'] ?? $about['content-name'] ?? ''), 'UTF-8');
        $type = mb_scrub((string)($about['content-type'] ?? ''), 'UTF-8');
        $content = (string)mailparse_msg_extract_part($part, $mail, null);
        $found[] = [base64_encode($content), $name, $type];
    }
    mailparse_msg_free($message);
    return $found;
}

while (strlen($head = (string)fread(STDIN, 4)) === 4) {
    $size = unpack('N', $head)[1];
    $mail = '';
    while (strlen($mail) < $size) {
        $piece = (string)fread(STDIN, $size - strlen($mail));
        if ($piece === '') {
            exit;
        }
        $mail .= $piece;
    }
    try {
        $found = found($mail);
    } catch (Throwable) {
        $found = [];
    }
    echo json_encode($found) ?: '[]', "\n";
    flush();
}
