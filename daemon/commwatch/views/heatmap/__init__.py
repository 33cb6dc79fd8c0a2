"""Drawing of pair matrices: in the terminal, as a picture, and two of them compared."""
