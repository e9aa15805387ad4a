# Reads length-prefixed mails and answers each with a line of JSON: what MIME::Parser finds in it.
use strict;
use warnings;
use JSON::PP;
use MIME::Base64 'encode_base64';
use MIME::Parser;

binmode STDIN;
$| = 1;
my $json = JSON::PP->new->ascii;
while (read(STDIN, my $size, 4) == 4) {
    $size = unpack 'N', $size;
    my $mail = '';
    while (length($mail) < $size) {
        read(STDIN, $mail, $size - length($mail), length($mail)) or exit;
    }
    my @found;
    for my $uu (0, 1) {  # with and without the search for uuencoded files in texts
        next if $uu && $mail !~ /^begin /m;
        eval {
            my $parser = MIME::Parser->new;
            $parser->output_to_core(1);
            $parser->tmp_to_core(1);
            $parser->extract_uuencode($uu);
            for my $part ($parser->parse_data($mail)->parts_DFS) {
                my $body = $part->bodyhandle or next;
                my $name = eval { $part->head->recommended_filename } // '';
                push @found, [encode_base64($body->as_string, ''), $name, $part->effective_type // ''];
            }
        };
    }
    print $json->encode(\@found), "\n";
}
