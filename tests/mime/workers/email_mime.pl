# Reads length-prefixed mails and answers each with a line of JSON: what Email::MIME finds in it.
use strict;
use warnings;
use Email::MIME;
use JSON::PP;
use MIME::Base64 'encode_base64';

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
    eval {
        Email::MIME->new($mail)->walk_parts(sub {
            my ($part) = @_;
            my $body = eval { $part->body } // '';
            utf8::encode($body) if utf8::is_utf8($body);
            my $name = eval { $part->filename } // '';
            my $type = eval { $part->content_type } // '';
            push @found, [encode_base64($body, ''), $name, lc((split /;/, $type)[0] // '')];
        });
    };
    print $json->encode(\@found), "\n";
}
