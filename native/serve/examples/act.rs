//! Decisions of a session, for counts of instructions: `act BACKBONE DECISIONS`, where `BACKBONE` is `mlp` or `gru`.
//! The difference between two numbers of decisions is the cost of the decisions alone; `bench/instructions.py` counts it.

use std::sync::Arc;

use sconce_nn::embedding::melee;
use sconce_nn::sampling::Sampling;
use sconce_nn::spec::{Backbone, Embedding, Heads, HeadsKind, Melee, MlpConfig, RecurrentConfig};
use sconce_nn::{Policy, Spec};
use sconce_serve::Format;
use sconce_serve::session::{Mode, Options, Overrides, Session};

fn main() {
    let mut args = std::env::args().skip(1);
    let (backbone, decisions) = (args.next().unwrap_or_default(), args.next());
    let decisions: u32 = decisions.and_then(|n| n.parse().ok()).expect("a number of decisions");
    let policy = Policy::init(&spec(&backbone), 1).expect("a policy");
    let options = Options {
        mode: Mode::Carry,
        window_size: 60,
        sampling: Sampling::default(),
        seed: 1,
        weights: Format::F32,
        lane: None,
        rollback: 0,
        frame_delay: Some(0),
        project_out: None,
    };
    let mut session = Session::open(Arc::new(policy), options).expect("a session");
    let mut raw = vec![0.0; melee::RAW_WIDTH];
    raw[melee::game().column("own.stock").expect("a column")] = 4.0;
    for _ in 0..decisions {
        session.act(&raw, &Overrides::default()).expect("a decision");
    }
}

fn spec(backbone: &str) -> Spec {
    let (dropout, input_dropout) = (0.0, 0.0);
    let backbone = match backbone {
        "mlp" => Backbone::Mlp(MlpConfig {
            hidden_sizes: vec![512, 512],
            layer_norm: false,
            residual: false,
            activation: Default::default(),
            dropout,
            input_dropout,
        }),
        _ => Backbone::Gru(RecurrentConfig {
            hidden_size: 256,
            num_layers: 2,
            layer_norm: true,
            input_norm: true,
            dropout,
            input_dropout,
            ..Default::default()
        }),
    };
    Spec {
        embedding: Embedding::melee(Melee::packed()),
        backbone,
        heads: Heads { prior: true, ..Heads::controller(HeadsKind::Autoregressive) },
        critic: None,
    }
}
