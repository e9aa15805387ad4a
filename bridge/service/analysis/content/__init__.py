"""What is in a mail: its files, pages, links and archives. Knows nothing of scanners, lists or decisions."""
