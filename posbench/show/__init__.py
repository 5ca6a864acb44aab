"""What a scheme, rescaling or position sampler is, in words, numbers and pictures."""
