//! Alone in its process: what is asked for must come before anything that runs on these pools.

use sconce_tensor::pool;

#[test]
fn candle_gets_no_threads_of_its_own() {
    pool::keep_libraries_single_threaded();
    assert_eq!(candle_core::utils::barrier_pool().n_workers(), 0);
    assert_eq!(rayon::current_num_threads(), 1);
}
