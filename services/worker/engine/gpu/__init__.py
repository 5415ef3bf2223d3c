"""Triton kernels of the engine on a CUDA device; importing them needs Triton.

All take plain tensors. A layer's pool is ``keys`` and ``values``, each (slots, KV heads, head
size) and contiguous; slot ``block * block_size + offset`` holds one token, ``block_size`` is a
power of two. Launch grids follow from shapes alone and lengths are read on the device, so a
captured graph stays right for other lengths. Arithmetic is in float32, whatever is stored.
"""
