"""What both kinds of worker share, whatever they compute."""
