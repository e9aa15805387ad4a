"""Learning: what people's reports change in the phishing score of one deployment or tenant."""
