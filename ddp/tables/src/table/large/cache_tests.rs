//! Tests of which pages are decoded when, and which are evicted.

use std::sync::Mutex;

use ddp::data::error::DataError;

use super::*;
use crate::formats::error::RowsError;

/// A cache of 8 groups of 10 bytes, whose decodes need 5, and the groups that were decoded.
fn cache(budget: usize) -> (Cache<usize>, Mutex<Vec<usize>>) {
    (Cache::new(vec![10; 8], 5, budget), Mutex::new(Vec::new()))
}

fn take(cache: &Cache<usize>, decoded: &Mutex<Vec<usize>>, groups: &[usize]) {
    let mut wanted = groups.to_vec();
    let decode = |group| {
        decoded.lock().unwrap().push(group);
        Ok(group)
    };
    while let Some(group) = cache.take(&mut wanted, decode).unwrap() {
        assert_eq!(*group, group.group);
    }
}

fn log(decoded: &Mutex<Vec<usize>>) -> Vec<usize> {
    std::mem::take(&mut *decoded.lock().unwrap())
}

#[test]
fn the_oldest_goes_and_this_window_stays() {
    let (cache, decoded) = cache(35);
    take(&cache, &decoded, &[0, 1, 2]);
    take(&cache, &decoded, &[0, 2]);
    assert_eq!(log(&decoded), [0, 1, 2]);
    // Room for three, of which one may be decoded anew.
    take(&cache, &decoded, &[3]);
    take(&cache, &decoded, &[0, 2]);
    assert_eq!((log(&decoded), cache.peak_bytes()), (vec![3], 35));

    // 0 was used longest ago, but is of this window.
    cache.expect(vec![0]);
    cache.expect(vec![2]);
    take(&cache, &decoded, &[3]);
    take(&cache, &decoded, &[5]);
    take(&cache, &decoded, &[0, 2]);
    assert_eq!(log(&decoded), [5]);
    take(&cache, &decoded, &[5, 6]);
    take(&cache, &decoded, &[0, 2]);
    assert_eq!(log(&decoded), [6]);
}

#[test]
fn the_next_window_is_decoded_ahead_and_never_for_this_one() {
    let (cache, decoded) = cache(45);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            cache.work_ahead(|group| {
                decoded.lock().unwrap().push(group);
                Ok(group)
            });
        });
        cache.expect(vec![0, 1]);
        take(&cache, &decoded, &[0, 1]);
        cache.expect(vec![2, 3, 4]);
        while log(&decoded).last() != Some(&3) {
            std::thread::yield_now();
        }
        // No room for 4 beside this window and what is ready of the next.
        take(&cache, &decoded, &[0, 1, 2, 3]);
        assert_eq!(log(&decoded), [0; 0]);
        // Now there is.
        cache.expect(vec![5]);
        while !log(&decoded).contains(&5) {
            std::thread::yield_now();
        }
        cache.close();
    });
    assert!(cache.peak_bytes() <= 45);
}

#[test]
fn each_group_is_decoded_once_however_many_ask() {
    // Room for all groups and the decodes of all threads, so that nothing is evicted.
    let (cache, decoded) = cache(100);
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| take(&cache, &decoded, &[0, 1, 2, 3, 4, 5, 6, 7]));
        }
    });
    let mut groups = log(&decoded);
    groups.sort_unstable();
    assert_eq!(groups, [0, 1, 2, 3, 4, 5, 6, 7]);
    assert!(cache.peak_bytes() <= 100);
}

#[test]
fn room_comes_back_when_a_decode_fails() {
    let (cache, decoded) = cache(25);
    for _ in 0..3 {
        let failed = || Err(DataError::from(RowsError::Changed { path: "rows".into() }));
        assert!(cache.take(&mut vec![1], |_| failed()).is_err());
    }
    take(&cache, &decoded, &[1, 2]);
    assert_eq!(log(&decoded), [1, 2]);
}
