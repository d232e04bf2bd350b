use candle_core::{Device, Tensor, Var};
use sconce_core::ops::{Selective, causal_conv, selective_scan};
use std::time::Instant;
fn r(shape: &[usize], lo: f32, hi: f32, track: bool) -> Tensor {
    let t = Tensor::rand(lo, hi, shape, &Device::Cpu).unwrap();
    if track { Var::from_tensor(&t).unwrap().into_inner() } else { t }
}
fn main() {
    let threads: usize = std::env::args().nth(1).map_or(1, |s| s.parse().unwrap());
    sconce_core::pool::keep_libraries_single_threaded();
    sconce_core::pool::set_threads(threads).unwrap();
    for (b, t, track) in [(1, 1, false), (1, 60, false), (32, 60, false), (32, 60, true)] {
        let (c, n) = (512, 16);
        let (u, dt, z) = (
            r(&[b, t, c], -1., 1., track),
            r(&[b, t, c], -5., -2., track),
            r(&[b, t, c], -1., 1., track),
        );
        let (bb, cc) = (r(&[b, t, n], -1., 1., track), r(&[b, t, n], -1., 1., track));
        let (a, d, h) =
            (r(&[c, n], -16., -1., track), r(&[c], 0., 1., track), r(&[b, c, n], -1., 1., false));
        let (w, bias, cs) =
            (r(&[c, 1, 4], -1., 1., track), r(&[c], -1., 1., track), r(&[b, c, 3], -1., 1., false));
        let med = |mut v: Vec<f64>| {
            v.sort_by(f64::total_cmp);
            v[0]
        };
        let (mut f, mut bw, mut cf, mut cb) = (vec![], vec![], vec![], vec![]);
        for _ in 0..30 {
            let s = Instant::now();
            let (y, _h) = selective_scan(
                Selective {
                    u: &u,
                    dt: &dt,
                    dt_softplus: true,
                    a: &a,
                    b: &bb,
                    c: &cc,
                    d: Some(&d),
                    z: Some(&z),
                    h: &h,
                },
                None,
            )
            .unwrap();
            f.push(s.elapsed().as_secs_f64() * 1e6);
            if track {
                let s = Instant::now();
                let g = y.backward().unwrap();
                bw.push(s.elapsed().as_secs_f64() * 1e6);
                drop(g);
            }
            let s = Instant::now();
            let (y, _h) = causal_conv(&u, &w, Some(&bias), &cs, true, None).unwrap();
            cf.push(s.elapsed().as_secs_f64() * 1e6);
            if track {
                let s = Instant::now();
                let g = y.backward().unwrap();
                cb.push(s.elapsed().as_secs_f64() * 1e6);
                drop(g);
            }
        }
        println!(
            "b{b} t{t} track {track}: scan {:.0} us, back {:.0}; conv {:.0}, back {:.0}",
            med(f),
            if track { med(bw) } else { 0. },
            med(cf),
            if track { med(cb) } else { 0. }
        );
    }
}
