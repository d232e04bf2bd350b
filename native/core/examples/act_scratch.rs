use sconce_core::{*, spec::*, policy::Frames, backbone::Context};
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let r = RecurrentConfig { hidden_size: 256, num_layers: 2, layer_norm: false, input_norm: false, dropout: 0.0, input_dropout: 0.0 };
    let backbone = match a[1].as_str() {
        "gru" => Backbone::Gru(r),
        "lstm" => Backbone::Lstm(r),
        _ => Backbone::Mlp(MlpConfig { hidden_sizes: vec![512, 512], layer_norm: true, residual: false, dropout: 0.0, input_dropout: 0.0 }),
    };
    let t: usize = a[2].parse().unwrap();
    let spec = Spec { embedding: Embedding::Melee(Melee::default()), backbone, heads: Heads::controller(HeadsKind::Independent) };
    let p = Policy::init(&spec, 1).unwrap();
    let f = Frames { batch: 1, time: t, continuous: vec![0.1; t*spec.embedding.continuous_width()], ids: vec![3; t*spec.embedding.num_ids()], previous: vec![0; 13*t] };
    let s = p.zero_state(1).unwrap();
    let n: usize = a[3].parse().unwrap();
    let mut us = vec![];
    for _ in 0..n {
        let start = std::time::Instant::now();
        p.forward_last(&f, None, &s).unwrap();
        us.push(start.elapsed().as_secs_f64()*1e6);
    }
    let _ = Context::default();
    us.sort_by(f64::total_cmp);
    println!("{} {t}: min {:.1} median {:.1}", a[1], us[0], us[n/2]);
}
