"""What an expert would look at one after the other: checks by branch, the verdict of all, and how it is shown."""
