"""What goes wrong on a simulated node, where and when: kinds of fault, and the file that names them."""
