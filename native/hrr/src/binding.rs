//! Binding by circular convolution, and its inverses, as products of spectra.

use std::sync::Arc;

use sconce_tensor::simd::mul_add;
use sconce_tensor::{Error, Result, dispatch};

use crate::fourier::{Plan, Scratch, factors};
use crate::vectors::{Domain, FEW, ROWS, Vectors, computed};

/// A bin whose squared modulus is below this share of the mean has no useful reciprocal in f32.
const LEAST_SHARE: f32 = 1e-10;

dispatch! {
    fn multiply<[const CONJUGATE: bool], [CONJUGATE]>(a: &[f32], b: &[f32], out: &mut [f32]) {
        let half = out.len() / 2;
        // Products of two scaled bins have the factor twice.
        let (real, other) = factors(out.len());
        let scale = 1.0 / other;
        let ((a_re, a_im), (b_re, b_im)) = (a.split_at(half), b.split_at(half));
        let (out_re, out_im) = out.split_at_mut(half);
        let parts = a_re.iter().zip(a_im).zip(b_re.iter().zip(b_im));
        for ((re, im), ((a_re, a_im), (b_re, b_im))) in
            out_re.iter_mut().zip(out_im.iter_mut()).zip(parts)
        {
            let (a_re, a_im) = (a_re * scale, a_im * scale);
            let b_im = if CONJUGATE { -b_im } else { *b_im };
            *re = mul_add::<FMA>(a_re, *b_re, -(a_im * b_im));
            *im = mul_add::<FMA>(a_re, b_im, a_im * *b_re);
        }
        // Bins 0 and half are real.
        if let ([re, ..], [im, ..]) = (out_re, out_im) {
            *re = a_re[0] * b_re[0] / real;
            *im = a_im[0] * b_im[0] / real;
        }
    }
}

dispatch! {
    /// Divides each bin of `out` by the squared modulus of that of `key`, in units of the factor of the spectrum.
    fn divide(key: &[f32], out: &mut [f32]) {
        let half = out.len() / 2;
        let (real, other) = factors(out.len());
        let (key_re, key_im) = key.split_at(half);
        let (out_re, out_im) = out.split_at_mut(half);
        let ends = [out_re[0] / (key_re[0] * key_re[0]), out_im[0] / (key_im[0] * key_im[0])];
        let bins = out_re.iter_mut().zip(out_im.iter_mut()).zip(key_re.iter().zip(key_im));
        for ((re, im), (key_re, key_im)) in bins {
            let by = other * other / mul_add::<FMA>(*key_re, *key_re, key_im * key_im);
            *re *= by;
            *im *= by;
        }
        (out_re[0], out_im[0]) = (ends[0] * real * real, ends[1] * real * real);
    }
}

/// The first bin of a spectrum that has no reciprocal.
fn vanishing(key: &[f32]) -> Option<usize> {
    let half = key.len() / 2;
    let (re, im) = key.split_at(half);
    let mut mean = 0.0;
    crate::tile::square(key, &mut mean);
    let least = LEAST_SHARE * mean / key.len() as f32;
    let vanishes = |square: f32| square.is_nan() || square <= least;
    if vanishes(re[0] * re[0]) {
        return Some(0);
    }
    if vanishes(im[0] * im[0]) {
        return Some(half);
    }
    let mut bins = re.iter().zip(im).skip(1);
    // The factor of these bins is larger.
    bins.position(|(re, im)| vanishes(0.5 * (re * re + im * im))).map(|at| at + 1)
}

/// The rows of a batch as spectra. Rows in time are transformed when they are read.
struct Spectra<'a> {
    vectors: &'a Vectors,
    /// The spectrum of the only row in time.
    only: Option<Arc<Vectors>>,
    plan: Option<Arc<Plan>>,
}

impl<'a> Spectra<'a> {
    fn of(vectors: &'a Vectors) -> Result<Self> {
        let in_time = vectors.domain() == Domain::Time;
        let only = match in_time && vectors.count() == 1 {
            true => vectors.moved(Domain::Spectrum)?.map(Arc::new),
            false => None,
        };
        let plan = (in_time && only.is_none()).then(|| Plan::of(vectors.dimension()));
        Ok(Spectra { vectors, only, plan })
    }

    /// A buffer for [`row`](Self::row).
    fn buffer(&self) -> Option<(Scratch, Vec<f32>)> {
        let plan = self.plan.as_ref()?;
        Some((plan.scratch(), vec![0.0; self.vectors.dimension()]))
    }

    fn row<'b>(&'b self, at: usize, buffer: &'b mut Option<(Scratch, Vec<f32>)>) -> &'b [f32] {
        match (&self.plan, buffer) {
            (Some(plan), Some((scratch, spectrum))) => {
                plan.forward(self.vectors.row(at), spectrum, scratch);
                spectrum
            }
            _ => self.only.as_deref().unwrap_or(self.vectors).shared_row(at),
        }
    }
}

impl Vectors {
    fn product(
        &self,
        other: &Vectors,
        what: &str,
        work: impl Fn(&[f32], &[f32], &mut [f32]) + Sync + Send,
    ) -> Result<Vectors> {
        let (count, d) = (self.paired(other, what)?, self.dimension());
        let (a, b) = (Spectra::of(self)?, Spectra::of(other)?);
        let per_shard = if a.plan.is_some() || b.plan.is_some() { FEW } else { ROWS };
        let numbers = computed(
            count,
            d,
            per_shard,
            || (a.buffer(), b.buffer()),
            |(one, two), at, out| work(a.row(at, one), b.row(at, two), out),
        )?;
        Ok(Vectors::of(d, Domain::Spectrum, numbers))
    }

    /// Each vector bound to that of `other`: their circular convolution `c[k] = sum over j of a[j] b[k - j]`, in the
    /// spectrum. A batch of one vector is bound to each vector of the other.
    ///
    /// # Errors
    /// `Mismatch` for other widths or counts, `OutOfMemory`.
    pub fn bind(&self, other: &Vectors) -> Result<Vectors> {
        self.paired(other, "second batch")?;
        self.with_domain(Domain::Spectrum, |a| {
            other.with_domain(Domain::Spectrum, |b| a.product(b, "second batch", multiply::<false>))
        })
    }

    /// The approximate inverse of [`bind`](Self::bind), the circular correlation `sum over j of key[j] self[k + j]`.
    /// It is exact for unitary keys.
    ///
    /// # Errors
    /// As of [`bind`](Self::bind).
    pub fn unbind(&self, keys: &Vectors) -> Result<Vectors> {
        self.product(keys, "keys", multiply::<true>)
    }

    /// The exact inverse of [`bind`](Self::bind), by the reciprocal of the spectrum of the keys. It amplifies noise
    /// where that spectrum is small.
    ///
    /// # Errors
    /// As of [`bind`](Self::bind); `Mismatch` for a key whose spectrum has a zero.
    pub fn unbind_exact(&self, keys: &Vectors) -> Result<Vectors> {
        self.paired(keys, "keys")?;
        keys.with_domain(Domain::Spectrum, |keys| {
            for at in 0..keys.count() {
                if let Some(bin) = vanishing(keys.row(at)) {
                    let what = format!("spectrum of key {at}");
                    return Err(Error::mismatch(what, "no zero", format!("0 in bin {bin}")));
                }
            }
            self.product(keys, "keys", |a, key, out| {
                multiply::<true>(a, key, out);
                divide(key, out);
            })
        })
    }
}
