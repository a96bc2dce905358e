//! A 128-bit mix of a row's number, whose sum over rows identifies the rows that were used.

/// Elements (i64, bits of u64) of the sums of mixes that [`super::begin_step`] adds to: the number of rows, then, modulo 2^64, the
/// sum of each 32-bit word of the rows' mixes, the lowest first.
pub const ROW_SUMS_LEN: usize = 5;

/// Two bijective 64-bit mixers next to each other: Stafford's variant 13, as in SplitMix64, and the finalizer of MurmurHash3.
#[inline]
pub fn mix_row(row: u64) -> u128 {
    let mut a = row.wrapping_add(0x9e37_79b9_7f4a_7c15);
    a = (a ^ (a >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    a = (a ^ (a >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    a ^= a >> 31;
    let mut b = row ^ 0xd1b5_4a32_d192_ed03;
    b = (b ^ (b >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    b = (b ^ (b >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    b ^= b >> 33;
    u128::from(a) << 64 | u128::from(b)
}
