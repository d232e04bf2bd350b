// The row and channel of a thread, where each row has its own blocks. All blocks lie along x, the only side of a grid
// that may exceed 65,535.
#pragma once

struct Channel {
  long long row;
  // At least the number of channels for a thread past the end of the row.
  int channel;
};

__device__ inline Channel channel_of_row(int channels) {
  const unsigned blocks = (channels + blockDim.x - 1) / blockDim.x;
  return {blockIdx.x / blocks, int(blockIdx.x % blocks * blockDim.x + threadIdx.x)};
}
