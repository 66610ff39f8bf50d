"""What models compute: a description for all, and one file a family that reads its files into it."""
