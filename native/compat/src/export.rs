//! Writes a policy in the formats that ExPhil and Edifice read.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use safetensors::tensor::{Dtype, TensorView};
use sconce_nn::spec::{
    Backbone, Embedding, Heads, HeadsKind, Layered, Melee, MlpActivation, NormEps,
};
use sconce_tensor::tensor::to_vec;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::arrays::{reversed, transposed};
use crate::config::{Config, NUM_DELAYS};
use crate::encode::{self, atom, binary, integer, list, map, tuple};
use crate::layers::{Layers, Leaf, Numbers};
use crate::names::{Order, Pair, Variant, pairs};
use crate::state::drawn;
use crate::{Error, Policy, Result, Spec};

/// Frames of a chunk of ExPhil's Mamba-2, if a config does not name it.
const CHUNK: u64 = 32;

/// A format of exports.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Format {
    /// A policy export of ExPhil: metadata and parameters of `Nx.serialize`.
    Axon,
    /// Edifice's safetensors: names joined by dots, without a config.
    Safetensors,
}

/// The bytes of a file, and what the reader of the file has to know.
///
/// # Errors
/// `Mismatch` for a policy that ExPhil cannot have.
pub fn export(policy: &Policy, format: Format) -> Result<(Vec<u8>, Vec<String>)> {
    let mut notes = vec![];
    let (layers, variant) = layers(policy, &mut notes)?;
    let bytes = match format {
        Format::Safetensors => safetensors(&layers)?,
        Format::Axon => manifest(&layers, &config(policy, variant)?),
    };
    Ok((bytes, notes))
}

fn layers(policy: &Policy, notes: &mut Vec<String>) -> Result<(Layers, Variant)> {
    let spec = policy.spec();
    check(spec, notes)?;
    let mut numbers: BTreeMap<&str, Vec<f32>> = BTreeMap::new();
    for (name, weight) in policy.weights() {
        numbers.insert(name, to_vec(weight)?);
    }
    let mut layers = Layers::default();
    let variant = variant(policy, &numbers);
    let pairs = pairs(spec, variant)?;
    for Pair { theirs, ours, order } in &pairs {
        let missing = || Error::not_found(ours.as_str());
        let shape = policy.weights().get(ours).ok_or_else(missing)?.dims();
        let all = numbers.get(ours.as_str()).ok_or_else(missing)?;
        let own = all.get(order.rows(shape).unwrap_or(0..all.len())).ok_or_else(missing)?;
        let leaf = match order {
            Order::Drawn { .. } => key(policy, theirs, own, notes),
            Order::Same => Leaf::of(shape.to_vec(), own.to_vec()),
            Order::Reversed => match order.theirs(shape)[..] {
                [a, b, c] => Leaf::of(vec![a, b, c], reversed(own, [c, b, a])),
                _ => return Err(missing()),
            },
            Order::Transposed | Order::Gate { .. } => {
                let mut own = own.to_vec();
                if let Order::Gate { and: Some(other), .. } = order {
                    let more = numbers.get(other.as_str()).ok_or_else(missing)?;
                    let more =
                        order.rows(shape).and_then(|rows| more.get(rows)).ok_or_else(missing)?;
                    own.iter_mut().zip(more).for_each(|(own, more)| *own += more);
                }
                let theirs = order.theirs(shape);
                match theirs[..] {
                    [rows, columns] => Leaf::of(theirs, transposed(&own, columns, rows)),
                    _ => Leaf::of(theirs, own),
                }
            }
        };
        layers.add(theirs.clone(), leaf).map_err(|fault| Error::corrupt("export", fault))?;
    }
    check_unwritten(&pairs, &numbers, variant)?;
    fresh_keys(spec, &mut layers, notes)?;
    Ok((layers, variant))
}

/// Refuses weights that no parameter has.
fn check_unwritten(
    pairs: &[Pair],
    numbers: &BTreeMap<&str, Vec<f32>>,
    variant: Variant,
) -> Result<()> {
    let mut written: BTreeSet<&str> = BTreeSet::new();
    for Pair { ours, order, .. } in pairs {
        written.insert(ours);
        if let Order::Gate { and: Some(other), .. } = order {
            written.insert(other);
        }
    }
    let is_missing =
        |name: &&&str| !(written.contains(**name) || variant.fused && name.contains(".bias_hh_"));
    match numbers.keys().find(is_missing) {
        Some(name) => Err(Error::mismatch(*name, "a weight that ExPhil has", "another")),
        None => Ok(()),
    }
}

/// Refuses what ExPhil's embedding, backbones and heads cannot say.
fn check(spec: &Spec, notes: &mut Vec<String>) -> Result<()> {
    if spec.heads.kind != HeadsKind::Independent || spec.heads.prior || spec.critic.is_some() {
        return Err(Error::mismatch("heads", "independent heads of a controller", "others"));
    }
    if spec.heads.parts != Heads::controller(HeadsKind::Independent).parts {
        return Err(Error::mismatch("heads", "a controller with 16 and 4 buckets", "others"));
    }
    let own = Embedding::melee(Melee {
        queue_depth: spec.embedding.queue_depth(),
        num_delays: spec.embedding.num_delays(),
        previous_action: spec.embedding.shows_previous(),
        ..Melee::packed()
    });
    if spec.embedding != own || ![0, NUM_DELAYS].contains(&spec.embedding.num_delays()) {
        let expected = "{:melee, layout: :packed} with 0 or 9 delays";
        return Err(Error::mismatch("embedding", expected, "another"));
    }
    let flag = |name: &str, expected: bool, got: bool| match expected == got {
        true => Ok(()),
        false => Err(Error::mismatch(name, expected, got)),
    };
    match &spec.backbone {
        Backbone::Mlp(own) if own.activation != MlpActivation::Relu => {
            Err(Error::mismatch("activation", ":relu", "another"))
        }
        Backbone::Lstm(own) | Backbone::Gru(own) => {
            if own.norm_eps != NormEps(1e-6) {
                let eps = own.norm_eps.0;
                notes.push(format!("norms add {eps:e} to the variance, and ExPhil's 1e-6"));
            }
            flag("input_norm", true, own.input_norm)?;
            flag("layer_norm", true, own.layer_norm)
        }
        Backbone::MinGru(own) | Backbone::MinLstm(own) => flag("input_norm", false, own.input_norm),
        _ => Ok(()),
    }
}

/// The names of layers in the file that the policy came from, as far as they fit the policy as it is now.
fn variant(policy: &Policy, numbers: &BTreeMap<&str, Vec<f32>>) -> Variant {
    let from = |name: &str| policy.notes().pointer(&format!("/imported/{name}")).cloned();
    let fused = from("fused").and_then(|own| own.as_bool()).unwrap_or_default();
    let is_zero = |(name, own): (&&str, &Vec<f32>)| {
        !name.contains(".bias_hh_") || own.iter().all(|number| *number == 0.0)
    };
    let ssd = match &policy.spec().backbone {
        Backbone::ExphilMamba(own) => {
            own.decays_input || from("config/backbone").is_some_and(|own| own != "mamba")
        }
        _ => false,
    };
    // The fused layout has one bias for both products.
    Variant { fused: fused && numbers.iter().all(is_zero), ssd }
}

/// The key whose draw is this state: that of the file that the policy came from.
fn key(policy: &Policy, name: &str, state: &[f32], notes: &mut Vec<String>) -> Leaf {
    let stored = policy.notes().pointer("/imported/keys").and_then(|keys| keys.get(name));
    let words = stored.and_then(Value::as_array).map(|words| {
        words.iter().filter_map(Value::as_u64).map(|word| word as u32).collect::<Vec<_>>()
    });
    let key = words.and_then(|words| <[u32; 2]>::try_from(words).ok());
    match key.filter(|key| drawn(*key, 1, state.len()) == state) {
        Some(key) => keyed(key),
        None => {
            notes.push(format!(
                "{name}: no key draws the stored state; exact for long windows only"
            ));
            keyed([0, 0])
        }
    }
}

fn keyed(key: [u32; 2]) -> Leaf {
    Leaf { shape: vec![2], numbers: Numbers::Words(key.to_vec()) }
}

/// Adds the keys that Axon's LSTM and GRU need where the policy starts from zeros.
fn fresh_keys(spec: &Spec, layers: &mut Layers, notes: &mut Vec<String>) -> Result<()> {
    let (cell, kinds) = match &spec.backbone {
        Backbone::Lstm(_) | Backbone::ExphilLstmHybrid(_) | Backbone::ExphilDeepResLstm(_) => {
            ("lstm", &["h", "c"][..])
        }
        Backbone::Gru(_) => ("gru", &["h"][..]),
        _ => return Ok(()),
    };
    let mut added = false;
    for layer in 1.. {
        if !layers.has(&format!(
            "{cell}_{layer}.input_kernel.wi{}",
            if cell == "lstm" { "i" } else { "r" }
        )) {
            break;
        }
        for kind in kinds {
            let name = format!("{cell}_{layer}_{kind}_hidden_state.key");
            if !layers.has(&name) {
                added = true;
                layers
                    .add(name, keyed([0, layer]))
                    .map_err(|fault| Error::corrupt("export", fault))?;
            }
        }
    }
    if added {
        let note = "the initial state: Axon draws one where the policy starts from zeros; exact for long windows only";
        notes.push(note.into());
    }
    Ok(())
}

/// The config of an export.
fn config(policy: &Policy, variant: Variant) -> Result<Config> {
    let spec = policy.spec();
    let (name, sizes): (_, Option<&dyn Layered>) = match &spec.backbone {
        Backbone::Lstm(own) => ("lstm", Some(own)),
        Backbone::Gru(own) => ("gru", Some(own)),
        Backbone::MinGru(own) => ("min_gru", Some(own)),
        Backbone::MinLstm(own) => ("min_lstm", Some(own)),
        Backbone::ExphilMamba(own) if variant.ssd => ("mamba_2", Some(own)),
        Backbone::ExphilMamba(own) => ("mamba", Some(own)),
        Backbone::ExphilGatedSsm(own) => ("gated_ssm", Some(own)),
        Backbone::ExphilJamba(own) => ("jamba", Some(own)),
        Backbone::ExphilAttention(own) => ("sliding_window", Some(own)),
        Backbone::ExphilLstmHybrid(own) => ("lstm_hybrid", Some(own)),
        Backbone::ExphilDeepResLstm(own) => ("deep_res_lstm", Some(own)),
        _ => ("mlp", None),
    };
    let mut config = Config::new();
    let mut put = |name: &str, own: Value| drop(config.insert(name.into(), own));
    for (name, own) in
        [("axis_buckets", 16), ("shoulder_buckets", 4), ("num_heads", 4), ("head_dim", 64)]
    {
        put(name, own.into());
    }
    for (name, own) in
        [("hidden_size", 256), ("num_layers", 2), ("state_size", 16), ("expand_factor", 2)]
    {
        put(name, own.into());
    }
    put("conv_size", 4.into());
    put("embed_size", spec.embedding.width().into());
    put("hidden_sizes", json!([512, 512]));
    put("dropout", json!(0.0));
    put("temporal", (name != "mlp").into());
    put("backbone", name.into());
    put("window_size", policy.noted("window_size").unwrap_or(60).into());
    put("use_prev_action", spec.embedding.shows_previous().into());
    put("queue_depth", spec.embedding.queue_depth().into());
    put("with_delay_id", (spec.embedding.num_delays() > 0).into());
    if let Some(own) = sizes {
        put("hidden_size", own.trunk().hidden_size.into());
        put("num_layers", own.trunk().num_layers.into());
        own.sizes().into_iter().for_each(|(name, size)| put(name, size.into()));
    }
    if let Backbone::Mlp(own) = &spec.backbone {
        put("hidden_sizes", json!(own.hidden_sizes));
    }
    // The size of a chunk decides the formula of Mamba-2.
    let imported = policy.notes().pointer("/imported/config");
    let chunk = imported.and_then(|config| config.get("chunk_size")).and_then(Value::as_u64);
    let (chunk, window) = (chunk.unwrap_or(CHUNK), config["window_size"].as_u64());
    if let Backbone::ExphilMamba(own) = &spec.backbone
        && variant.ssd
        && own.decays_input != window.is_some_and(|window| window <= chunk)
    {
        let bound = if own.decays_input { "at most" } else { "more than" };
        let window = window.unwrap_or_default();
        return Err(Error::mismatch("window_size", format!("{bound} {chunk} frames"), window));
    }
    Ok(config)
}

/// A tree of parameters: a leaf, or the parameters under a name.
enum Tree<'a> {
    Leaf(&'a Leaf),
    Under(BTreeMap<&'a str, Tree<'a>>),
}

fn tree(layers: &Layers) -> Tree<'_> {
    let mut root = BTreeMap::new();
    for (name, leaf) in layers.iter() {
        let mut at = &mut root;
        let mut parts = name.split('.').peekable();
        while let Some(part) = parts.next() {
            if parts.peek().is_none() {
                at.insert(part, Tree::Leaf(leaf));
            } else if let Tree::Under(inner) =
                at.entry(part).or_insert_with(|| Tree::Under(BTreeMap::new()))
            {
                at = inner;
            } else {
                break;
            }
        }
    }
    Tree::Under(root)
}

/// The metadata and the parameters of a policy export.
fn manifest(layers: &Layers, config: &Config) -> Vec<u8> {
    let mut buffers = vec![];
    let containers = encode::whole(container(&tree(layers), &mut buffers));
    let pairs: Vec<_> = config.iter().map(|(name, own)| (atom(name), encode::value(own))).collect();
    let options: Vec<_> =
        config.iter().map(|(name, own)| tuple(&[atom(name), encode::value(own)])).collect();
    let spec = map(&[
        (atom("arch"), atom("exphil_policy")),
        (atom("build_opts"), list(&options)),
        (atom("external"), atom("true")),
    ]);
    let metadata =
        encode::whole(map(&[(atom("config"), map(&pairs)), (binary("__edifice_spec__"), spec)]));
    let lengths = ((metadata.len() as u32).to_be_bytes(), (containers.len() as u64).to_be_bytes());
    [&[0][..], &lengths.0, &metadata, b"nx", &[1, 0], &lengths.1, &containers, &buffers].concat()
}

fn container(tree: &Tree, buffers: &mut Vec<u8>) -> encode::Term {
    match tree {
        Tree::Leaf(leaf) => {
            let (kind, bytes) = le_bytes(leaf);
            let offset = buffers.len();
            buffers.extend(&bytes);
            let sizes: Vec<_> = leaf.shape.iter().map(|n| integer(*n as i64)).collect();
            let names = list(&vec![atom("nil"); leaf.shape.len()]);
            let of = tuple(&[atom(kind), integer(32)]);
            let (offset, size) = (integer(offset as i64), integer(bytes.len() as i64));
            tuple(&[atom("t"), tuple(&sizes), of, names, list(&[]), offset, size])
        }
        Tree::Under(inner) => {
            let pair =
                |(name, tree): (&&str, &Tree)| tuple(&[binary(name), container(tree, buffers)]);
            let pairs: Vec<_> = inner.iter().map(pair).collect();
            tuple(&[atom("Elixir.Nx.Container.Map"), list(&pairs), atom("ok")])
        }
    }
}

/// The name of the type in Nx and the bytes of a parameter.
fn le_bytes(leaf: &Leaf) -> (&'static str, Vec<u8>) {
    match &leaf.numbers {
        Numbers::Floats(all) => ("f", all.iter().flat_map(|x| x.to_le_bytes()).collect()),
        Numbers::Words(all) => ("u", all.iter().flat_map(|x| x.to_le_bytes()).collect()),
    }
}

fn safetensors(layers: &Layers) -> Result<Vec<u8>> {
    let bytes: Vec<_> = layers.iter().map(|(name, leaf)| (name, leaf, le_bytes(leaf))).collect();
    let mut views = HashMap::new();
    for (name, leaf, (kind, bytes)) in &bytes {
        let dtype = if *kind == "f" { Dtype::F32 } else { Dtype::U32 };
        let view = TensorView::new(dtype, leaf.shape.clone(), bytes);
        views.insert(name.as_str(), view.map_err(|error| Error::corrupt("export", error))?);
    }
    safetensors::serialize(views, None).map_err(|error| Error::corrupt("export", error))
}
