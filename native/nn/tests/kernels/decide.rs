//! `decide.cu` against the kinds of heads on the CPU, one head after another.

use sconce_nn::head::{Chance, HeadKind, NONE, to_word};
use sconce_nn::sampling::Sampling;
use sconce_tensor::rng::Rng;

use crate::emulated::Emulated;
use crate::memory::Argument::{self, Int, Long, Pointers};
use crate::memory::{Memory, NULL};
use crate::{Kernels, assert_near};

const ROWS: usize = 24;
const STREAM: usize = 37;
const KINDS: [HeadKind; 4] = [
    HeadKind::Bernoulli(8),
    HeadKind::Categorical(17),
    HeadKind::Categorical(150),
    HeadKind::Bernoulli(3),
];
const LOGITS: usize = 8 + 17 + 150 + 3;
const LABELS: usize = 8 + 1 + 1 + 3;
const DRAW: usize = 8;

/// Assigned to the rows in turn.
fn samplings() -> [Sampling; 4] {
    let plain = Sampling::default();
    let thresholds = Sampling { press_threshold: 0.6, release_threshold: 0.3, ..plain.clone() };
    [
        Sampling { temperature: 0.5, ..plain.clone() },
        Sampling { deterministic_buttons: true, temperature: 1.5, ..thresholds.clone() },
        Sampling { deterministic: true, ..thresholds },
        plain,
    ]
}

fn numbers(name: &str, at: usize, count: usize) -> Vec<f32> {
    let rng = Rng::new(4, name, at as u64);
    (0..count as u64).map(|i| rng.normal(i) * 0.4).collect()
}

struct Head {
    kind: HeadKind,
    decode: Vec<f32>,
    bias: Vec<f32>,
    encode: Vec<f32>,
    prior: Vec<f32>,
}

/// The last head has no encoder.
fn heads() -> Vec<Head> {
    let head = |(i, kind): (usize, HeadKind)| {
        let n = kind.logits();
        let last = i + 1 == KINDS.len();
        Head {
            kind,
            decode: numbers("decode", i, n * STREAM),
            bias: numbers("bias", i, n),
            encode: if last { vec![] } else { numbers("encode", i, STREAM * n) },
            prior: numbers("prior", i, (kind.classes() + 1) * n),
        }
    };
    KINDS.into_iter().enumerate().map(head).collect()
}

struct Case {
    heads: Vec<Head>,
    with_prior: bool,
    streams: Vec<f32>,
    previous: Option<Vec<f32>>,
    given: Vec<f32>,
    rngs: Vec<Rng>,
}

impl Case {
    fn new(with_prior: bool, with_previous: bool) -> Self {
        let rng = Rng::new(2, "labels", 0);
        // Some rows have no previous labels, and some have given choices.
        let label = |i: usize, of: u64, every: usize| {
            if i / LABELS % every == 1 { NONE } else { (rng.u32(i as u64 + (of << 32)) % 2) as f32 }
        };
        let given = |i: usize| if i / LABELS % 5 == 3 { label(i, 2, 6) } else { NONE };
        let rows = 0..ROWS * LABELS;
        Case {
            heads: heads(),
            with_prior,
            streams: numbers("stream", 0, ROWS * STREAM),
            previous: with_previous.then(|| rows.clone().map(|i| label(i, 1, 3)).collect()),
            given: rows.map(given).collect(),
            rngs: (0..ROWS as u64).map(|row| Rng::new(row, "act", (row + 7) << 30)).collect(),
        }
    }

    /// Logits and labels of all rows.
    fn on_cpu(&self) -> [Vec<f32>; 2] {
        let (mut logits, mut labels) = (vec![], vec![]);
        for row in 0..ROWS {
            let mut stream = self.streams[row * STREAM..][..STREAM].to_vec();
            let mut first = 0;
            for head in &self.heads {
                let (n, count) = (head.kind.logits(), head.kind.labels());
                let part = |all: &[f32]| all[row * LABELS + first..][..count].to_vec();
                let previous = self.previous.as_deref().map(part);
                let prior = |i: usize| {
                    let label = if head.kind.classes() == n { 0 } else { i };
                    let known = previous.as_ref().map_or(NONE, |previous| previous[label]);
                    head.prior[(known as usize).min(head.kind.classes()) * n + i]
                };
                let own: Vec<f32> = (0..n)
                    .map(|i| {
                        let row = &head.decode[i * STREAM..][..STREAM];
                        let sum: f32 = row.iter().zip(&stream).map(|(w, s)| w * s).sum();
                        sum + head.bias[i] + if self.with_prior { prior(i) } else { 0.0 }
                    })
                    .collect();
                let mut chosen = part(&self.given);
                if chosen[0] == NONE {
                    let held = previous.filter(|held| held[0] != NONE);
                    let sampling = &samplings()[row % 4];
                    let (rng, index) = (&self.rngs[row], first as u64);
                    let chance = Chance { sampling, rng, index, held: held.as_deref() };
                    head.kind.choose(&own, &chance, &mut chosen);
                }
                let mut flat = vec![0.0; n];
                head.kind.encode(&chosen, &mut flat);
                for (s, encode) in stream.iter_mut().zip(head.encode.chunks(n)) {
                    *s += encode.iter().zip(&flat).map(|(w, v)| w * v).sum::<f32>();
                }
                logits.extend(own);
                labels.extend(chosen);
                first += count;
            }
        }
        [logits, labels]
    }

    fn launched(&self, kernels: &impl Kernels) -> [Vec<f32>; 2] {
        let words =
            |labels: &[f32]| labels.iter().map(|l| to_word(*l).into()).collect::<Vec<u32>>();
        let mut streams = Memory::<f32>::of(&self.streams);
        let mut previous = self.previous.as_ref().map(|labels| Memory::exactly(&words(labels)));
        let mut given = Memory::exactly(&words(&self.given));
        let draw = |(row, rng): (usize, &Rng)| {
            let Sampling { temperature, press_threshold, release_threshold, .. } =
                samplings()[row % 4];
            let flags = u32::from(samplings()[row % 4].deterministic)
                + 2 * u32::from(samplings()[row % 4].deterministic_buttons);
            let [a, b, c, d] = rng.words();
            let bits = [temperature, press_threshold, release_threshold].map(f32::to_bits);
            [a, b, c, d, bits[0], bits[1], bits[2], flags]
        };
        let draws: Vec<[u32; DRAW]> = self.rngs.iter().enumerate().map(draw).collect();
        let mut draws = Memory::exactly(&draws.concat());
        let mut out = Memory::<f32>::unwritten(ROWS * (LOGITS + LABELS));
        let weights = |head: &Head| {
            [&head.decode, &head.bias, &head.encode, &head.prior].map(|w| Memory::<f32>::of(w))
        };
        let mut memories: Vec<[Memory<f32>; 4]> = self.heads.iter().map(weights).collect();
        let mut table: Vec<Argument<'_>> = vec![];
        let (mut logit, mut label) = (0, 0);
        for (head, memories) in self.heads.iter().zip(&mut memories) {
            let [decode, bias, encode, prior] = memories;
            table.extend([decode.argument(), bias.argument()]);
            table.push(if head.encode.is_empty() { NULL } else { encode.argument() });
            table.push(if self.with_prior { prior.argument() } else { NULL });
            let classes = matches!(head.kind, HeadKind::Categorical(_));
            table.extend([Long(head.kind.logits() as i64), Long(classes.into())]);
            table.extend([Long(logit), Long(label)]);
            logit += head.kind.logits() as i64;
            label += head.kind.labels() as i64;
        }
        let arguments = &mut [
            streams.argument(),
            Pointers(table),
            previous.as_mut().map_or(NULL, Memory::argument),
            given.argument(),
            draws.argument(),
            out.argument(),
            Int(KINDS.len() as i32),
            Int(STREAM as i32),
            Int(LOGITS as i32),
            Int(LABELS as i32),
        ];
        kernels.launch("decide", [ROWS as u32, 1, 1], [256, 1, 1], arguments);
        let out = out.read();
        let rows = out.chunks(LOGITS + LABELS).map(|row| row.split_at(LOGITS));
        let (logits, labels): (Vec<&[f32]>, Vec<&[f32]>) = rows.unzip();
        [logits.concat(), labels.concat()]
    }
}

fn decisions_equal_those_of_the_cpu(kernels: &impl Kernels) {
    for (with_prior, with_previous) in [(true, true), (false, true), (true, false), (false, false)]
    {
        let case = Case::new(with_prior, with_previous);
        let ([got_logits, got], [want_logits, want]) = (case.launched(kernels), case.on_cpu());
        assert_eq!(got, want, "labels, prior {with_prior}, previous {with_previous}");
        assert_near("logits", &got_logits, &want_logits, 1e-5);
    }
}

#[test]
fn decisions_of_autoregressive_heads_equal_those_of_the_cpu() {
    decisions_equal_those_of_the_cpu(&Emulated::compile("decide"));
}

#[cfg(feature = "cuda")]
#[test]
#[ignore = "needs an NVIDIA card"]
fn decisions_on_a_card_equal_those_of_the_cpu() {
    let ptx = sconce_cuda::kernels::DECIDE.ptx;
    decisions_equal_those_of_the_cpu(&crate::card::Card::open("decide", ptx));
}
