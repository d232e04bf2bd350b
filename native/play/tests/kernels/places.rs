//! `places.cu` compared with a search in order.

use sconce_tensor::rng::Rng;

use crate::Kernels;
use crate::emulated::Emulated;
use crate::memory::Argument::{Int, Long};
use crate::memory::{Memory, NULL};

/// The places of words that equal `wanted` (0: that are not 0), with the words beside them; their number, which is that
/// of all, and the last `most`.
fn found(
    kernels: &impl Kernels,
    words: &[u32],
    beside: Option<&[u32]>,
    wanted: u32,
    most: usize,
) -> (usize, Vec<u32>) {
    let width = if beside.is_some() { 3 } else { 1 };
    let mut own = Memory::exactly(words);
    let mut other = beside.map(Memory::exactly);
    let (mut out, mut count) = (Memory::exactly(&vec![9u32; most * width]), Memory::exactly(&[9]));
    let mut arguments = vec![
        own.argument(),
        other.as_mut().map_or(NULL, Memory::argument),
        out.argument(),
        count.argument(),
        Long(words.len() as i64),
        Int(wanted as i32),
        Long(most as i64),
    ];
    kernels.launch("wanted_places", [1; 3], [256, 1, 1], &mut arguments);
    drop(arguments);
    (count.exact()[0] as usize, out.exact().to_vec())
}

fn places_are_in_order(kernels: &impl Kernels) {
    let rng = Rng::new(4, "words", 0);
    for n in [0, 1, 255, 256, 257, 5000] {
        let words: Vec<u32> = (0..n).map(|i| rng.below(i, 4) as u32).collect();
        let beside: Vec<u32> = (0..n as u32).map(|i| 7 * i).collect();
        for (wanted, most) in [(2, words.len()), (0, words.len()), (0, 10), (3, 1)] {
            let is_wanted = |word: u32| if wanted == 0 { word != 0 } else { word == wanted };
            let places = (0..words.len()).filter(|i| is_wanted(words[*i]));
            let places: Vec<u32> = places.map(|i| i as u32).collect();
            let last = &places[places.len().saturating_sub(most)..];
            let (count, got) = found(kernels, &words, None, wanted, most);
            assert_eq!((count, &got[..last.len()]), (places.len(), last), "{n} words");
            let (count, got) = found(kernels, &words, Some(&beside), wanted, most);
            let all = last.iter().flat_map(|i| [*i, words[*i as usize], beside[*i as usize]]);
            let want: Vec<u32> = all.collect();
            assert_eq!((count, &got[..want.len()]), (places.len(), &want[..]), "{n} words");
        }
    }
}

#[test]
fn wanted_places_are_found_in_order_and_the_last_of_them_are_kept() {
    places_are_in_order(&Emulated::compile("places"));
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn wanted_places_are_found_on_a_card() {
    let module = sconce_cuda::kernels::PLACES;
    places_are_in_order(&crate::card::Card::open(module.name, module.ptx));
}
