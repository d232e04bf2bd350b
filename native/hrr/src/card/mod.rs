//! Holographic vectors on a card, by `holographic.cu`.

use std::sync::OnceLock;

use sconce_cuda::kernels::HOLOGRAPHIC;
use sconce_tensor::device::launch::{Launch, unwritten};
use sconce_tensor::device::{Held, Owner};
use sconce_tensor::{DType, Device, Error, Result, Tensor, device, tensor};

use crate::fourier::factors;
use crate::superposition::Sum;
use crate::vectors::{Domain, Vectors, check_width, paired};

/// Threads of a block, its warps, and queries of a warp.
const THREADS: usize = 256;
const WARPS: usize = THREADS / 32;
const QUERIES: usize = 4;
/// Most numbers of a vector whose transform fits in shared memory.
pub const MOST_ON_CARD: usize = 8192;
/// Most vectors of a batch: a block for each.
const MOST_ROWS: usize = i32::MAX as usize;

/// Vectors on a card, as [`Vectors`] on the CPU.
#[derive(Debug, Clone)]
pub struct CardVectors {
    domain: Domain,
    /// `[count, dimension]`.
    numbers: Tensor,
    /// The length of each vector.
    norms: OnceLock<Tensor>,
    _held: Held,
}

/// Vectors with 8 bits a number on a card, as [`Codes`](crate::Codes) on the CPU.
#[derive(Debug, Clone)]
pub struct CardCodes {
    domain: Domain,
    /// Integers with a sign as bytes, `[count, dimension]`.
    codes: Tensor,
    norms: Tensor,
    _held: Held,
}

/// The vectors that queries on a card are compared with.
#[derive(Debug, Clone, Copy)]
pub enum CardItems<'a> {
    /// Numbers of 32 bits.
    Numbers(&'a CardVectors),
    /// Numbers of 8 bits.
    Codes(&'a CardCodes),
}

/// Runs a launch with a block for each row.
fn by_row(launch: Launch, rows: usize) -> Result<()> {
    // SAFETY: a block for each row, and tensors of the sizes that holographic.cu requires.
    Ok(unsafe { launch.run([rows, 1, 1], [THREADS, 1, 1], 0) }?)
}

/// Runs a launch with a thread for each of `n` numbers.
fn by_number(launch: Launch, n: usize) -> Result<()> {
    // SAFETY: a thread for each number, and tensors of the sizes that holographic.cu requires.
    Ok(unsafe { launch.run([n.div_ceil(THREADS), 1, 1], [THREADS, 1, 1], 0) }?)
}

/// Waits for the work of a tensor's stream. Other batches have streams of their own, which may read the tensor next or
/// free one that it was computed from.
fn finish(x: &Tensor) -> Result<()> {
    Ok(x.device().synchronize()?)
}

/// Checks lengths, which are infinite or no number where a squared length exceeds the range of f32.
fn check_norms(norms: &Tensor, what: &str) -> Result<()> {
    let norms: Vec<f32> = norms.to_vec1()?;
    match norms.iter().position(|norm| !norm.is_finite()) {
        None => Ok(()),
        Some(at) => {
            let what = format!("the length of vector {at} of the {what}");
            Err(Error::NonFinite { what, value: f64::from(norms[at]) })
        }
    }
}

impl CardVectors {
    fn with(domain: Domain, numbers: Tensor) -> Self {
        let held = Held::of(Owner::Weights, [&numbers]);
        CardVectors { domain, numbers, norms: OnceLock::new(), _held: held }
    }

    /// Copies vectors to a card.
    ///
    /// # Errors
    /// `OutOfRange` for too many vectors; those of a copy.
    pub fn of(vectors: &Vectors, device: &Device) -> Result<Self> {
        let shape = (vectors.count(), vectors.dimension());
        if shape.0 > MOST_ROWS {
            return Err(Error::out_of_range("count", shape.0 as f64, 1.0, MOST_ROWS as f64));
        }
        device::attach(device);
        let numbers = Tensor::from_slice(vectors.numbers(), shape, device)?;
        finish(&numbers)?;
        Ok(Self::with(vectors.domain(), numbers))
    }

    /// Copies the vectors to the CPU.
    ///
    /// # Errors
    /// Those of a copy.
    pub fn to_cpu(&self) -> Result<Vectors> {
        device::attach(self.device());
        Ok(Vectors::of(self.dimension(), self.domain, tensor::to_vec(&self.numbers)?))
    }

    /// The number of vectors.
    pub fn count(&self) -> usize {
        self.numbers.elem_count() / self.dimension()
    }

    /// Numbers of a vector.
    pub fn dimension(&self) -> usize {
        self.numbers.dims().last().copied().unwrap_or(1)
    }

    /// The domain of the numbers.
    pub fn domain(&self) -> Domain {
        self.domain
    }

    /// The card.
    pub fn device(&self) -> &Device {
        self.numbers.device()
    }

    /// The same vectors in a domain.
    ///
    /// # Errors
    /// `Unavailable` for a transform of more than [`MOST_ON_CARD`] numbers, or of a number that is no power of two.
    pub fn within(&self, domain: Domain) -> Result<Self> {
        let d = self.dimension();
        if self.domain == domain {
            return Ok(self.clone());
        }
        device::attach(self.device());
        if !d.is_power_of_two() || d > MOST_ON_CARD {
            let what = format!("a transform of {d} numbers on a card");
            let reason = format!("a card transforms powers of two up to {MOST_ON_CARD}");
            return Err(Error::Unavailable { what, reason });
        }
        let kernel = match domain {
            Domain::Spectrum => "hrr_spectrum",
            Domain::Time => "hrr_time",
        };
        let (ends, bins) = factors(d);
        let out = unwritten((self.count(), d), DType::F32, &self.numbers)?;
        let launch = Launch::of(HOLOGRAPHIC, kernel, &out)?.tensor(&self.numbers)?.tensor(&out)?;
        let launch = launch.int(d).int((d / 2).ilog2() as usize).float(ends).float(bins);
        by_row(launch, self.count())?;
        finish(&out)?;
        Ok(Self::with(domain, out))
    }

    fn product(&self, other: &Self, what: &str, conjugate: bool) -> Result<Self> {
        let d = self.dimension();
        check_width(d, other.dimension(), what)?;
        let count = paired(self.count(), other.count(), what)?;
        device::attach(self.device());
        let [a, b] = [self.within(Domain::Spectrum)?, other.within(Domain::Spectrum)?];
        let out = unwritten((count, d), DType::F32, &a.numbers)?;
        let (ends, bins) = factors(d);
        let step = |of: &Self| usize::from(of.count() > 1);
        let launch = Launch::of(HOLOGRAPHIC, "hrr_multiply", &out)?.tensor(&a.numbers)?;
        let launch = launch.tensor(&b.numbers)?.tensor(&out)?.long(count).int(d);
        let launch = launch.int(step(&a)).int(step(&b)).int(usize::from(conjugate));
        by_number(launch.float(ends).float(bins), count * d / 2)?;
        finish(&out)?;
        Ok(Self::with(Domain::Spectrum, out))
    }

    /// [`Vectors::bind`] on the card.
    ///
    /// # Errors
    /// `Mismatch` for other widths or counts; those of [`within`](Self::within).
    pub fn bind(&self, other: &Self) -> Result<Self> {
        self.product(other, "second batch", false)
    }

    /// [`Vectors::unbind`] on the card.
    ///
    /// # Errors
    /// As of [`bind`](Self::bind).
    pub fn unbind(&self, keys: &Self) -> Result<Self> {
        self.product(keys, "keys", true)
    }

    /// [`Vectors::superpose`] on the card.
    ///
    /// # Errors
    /// As of [`Vectors::superpose`].
    pub fn superpose(&self, options: &Sum) -> Result<Self> {
        let (count, d) = (self.count(), self.dimension());
        let group = options.group_of(count)?;
        device::attach(self.device());
        let weights = match &options.weights {
            None => None,
            Some(weights) => {
                Some(Tensor::from_slice(weights, weights.len(), self.numbers.device())?)
            }
        };
        let sums = count / group;
        let out = unwritten((sums, d), DType::F32, &self.numbers)?;
        let launch = Launch::of(HOLOGRAPHIC, "hrr_superpose", &out)?.tensor(&self.numbers)?;
        let launch = launch.option(weights.as_ref())?.tensor(&out)?.long(sums).long(group).int(d);
        by_number(launch, sums * d)?;
        let sum = Self::with(self.domain, out);
        if !options.normalise {
            finish(&sum.numbers)?;
            return Ok(sum);
        }
        let norms = sum.norms()?;
        check_norms(norms, "sums")?;
        let launch = Launch::of(HOLOGRAPHIC, "hrr_normalise", norms)?.tensor(&sum.numbers)?;
        by_row(launch.tensor(norms)?.int(d), sums)?;
        finish(norms)?;
        // The lengths are those before the division.
        Ok(Self::with(self.domain, sum.numbers))
    }

    /// The length of each vector.
    fn norms(&self) -> Result<&Tensor> {
        if self.norms.get().is_none() {
            let norms = unwritten(self.count(), DType::F32, &self.numbers)?;
            let launch = Launch::of(HOLOGRAPHIC, "hrr_norms", &norms)?.tensor(&self.numbers)?;
            by_row(launch.tensor(&norms)?.int(self.dimension()), self.count())?;
            finish(&norms)?;
            // Another thread may have computed the same lengths meanwhile.
            drop(self.norms.set(norms));
        }
        self.norms.get().ok_or_else(|| Error::not_found("lengths of vectors"))
    }

    /// [`Vectors::similarity`] on the card, `[count, items]`.
    ///
    /// # Errors
    /// As of [`Vectors::similarity`]; those of [`within`](Self::within) for items in the other domain.
    pub fn similarity(&self, items: CardItems<'_>) -> Result<Vec<f32>> {
        let d = self.dimension();
        check_width(d, items.dimension(), "items")?;
        device::attach(self.device());
        let queries = self.within(items.domain())?;
        check_norms(queries.norms()?, "queries")?;
        let codes = match items {
            CardItems::Numbers(_) => None,
            CardItems::Codes(_) => Some(CardCodes::of(&queries)?),
        };
        let (kernel, [own, norms], [others, lengths]) = match (items, &codes) {
            (CardItems::Codes(items), Some(codes)) => {
                let own = [&codes.codes, &codes.norms];
                ("hrr_similarity_codes", own, [&items.codes, &items.norms])
            }
            (CardItems::Numbers(items), _) => {
                check_norms(items.norms()?, "items")?;
                let own = [&queries.numbers, queries.norms()?];
                ("hrr_similarity", own, [&items.numbers, items.norms()?])
            }
            (CardItems::Codes(_), None) => return Err(Error::not_found("codes of the queries")),
        };
        let (count, items) = (self.count(), lengths.elem_count());
        let out = unwritten((count, items), DType::F32, norms)?;
        let launch = Launch::of(HOLOGRAPHIC, kernel, &out)?.tensor(own)?.tensor(others)?;
        let launch = launch.tensor(norms)?.tensor(lengths)?.tensor(&out)?;
        let launch = launch.long(count).long(items).int(d);
        let grid = [items.div_ceil(WARPS), count.div_ceil(QUERIES), 1];
        // SAFETY: a warp for each item and some queries, and tensors of the sizes that holographic.cu requires.
        unsafe { launch.run(grid, [THREADS, 1, 1], 0) }?;
        Ok(tensor::to_vec(&out)?)
    }
}

impl CardCodes {
    /// [`Codes::of`](crate::Codes::of) on the card.
    ///
    /// # Errors
    /// As of [`Codes::of`](crate::Codes::of).
    pub fn of(vectors: &CardVectors) -> Result<Self> {
        device::attach(vectors.device());
        check_norms(vectors.norms()?, "items")?;
        let (count, d) = (vectors.count(), vectors.dimension());
        let codes = unwritten((count, d), DType::U8, &vectors.numbers)?;
        let norms = unwritten(count, DType::F32, &vectors.numbers)?;
        let launch = Launch::of(HOLOGRAPHIC, "hrr_encode", &norms)?.tensor(&vectors.numbers)?;
        by_row(launch.tensor(&codes)?.tensor(&norms)?.int(d), count)?;
        finish(&norms)?;
        let held = Held::of(Owner::Weights, [&codes]);
        Ok(CardCodes { domain: vectors.domain, codes, norms, _held: held })
    }

    /// The card.
    pub fn device(&self) -> &Device {
        self.codes.device()
    }
}

impl CardItems<'_> {
    fn dimension(&self) -> usize {
        match self {
            CardItems::Numbers(items) => items.dimension(),
            CardItems::Codes(items) => items.codes.dims().last().copied().unwrap_or(1),
        }
    }

    fn domain(&self) -> Domain {
        match self {
            CardItems::Numbers(items) => items.domain,
            CardItems::Codes(items) => items.domain,
        }
    }
}
