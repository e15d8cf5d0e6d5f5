"""`/infill`: llama.cpp's fill-in-the-middle."""
