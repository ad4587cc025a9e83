# The CUDA device: HEBB_CUDA=AUTO builds it where the toolkit is found.
set(HEBB_CUDA_FOUND OFF)
