// Which channel of which row a thread has, where each row has blocks of its own: all of them lie along x, the only side
// of a grid that has room for more than 65,535.
#pragma once

struct Channel {
  long long row;
  // One behind the last where a row ends within a block.
  int channel;
};

__device__ inline Channel channel_of_row(int channels) {
  const unsigned blocks = (channels + blockDim.x - 1) / blockDim.x;
  return {blockIdx.x / blocks, int(blockIdx.x % blocks * blockDim.x + threadIdx.x)};
}
