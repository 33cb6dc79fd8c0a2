"""How well the GPUs of this node communicate, in one number made of four parts, and what each lost point went to."""
