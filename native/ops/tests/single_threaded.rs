//! This test is alone in its process: the request must precede any work on these thread pools.

use sconce_tensor::pool;

#[test]
fn candle_has_no_threads_of_its_own() {
    pool::keep_libraries_single_threaded();
    assert_eq!(candle_core::utils::barrier_pool().n_workers(), 0);
    assert_eq!(rayon::current_num_threads(), 1);
}
