//! CUDA kernels beside the ops of the CPU: each is compiled as C++ and run thread by thread, so that the indices
//! it touches are seen where there is no card. What a card makes of them is for tests that have one.

mod emulated;
mod norm;
