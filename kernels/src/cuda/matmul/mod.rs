//! Matmuls on a GPU: enqueued by their plans (`blas/`), whose algorithms are the heuristic's or chosen by time.

mod timing;

mod enqueue;

#[cfg(test)]
mod record_tests;
#[cfg(test)]
mod tests;
