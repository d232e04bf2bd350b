//! A JSON tree that can hold text which no serializer writes: duplicate keys, and numbers beyond the range of
//! all types.

use serde_json::Value;

use crate::rng::Rng;

#[derive(Debug, Clone, PartialEq)]
pub enum Node {
    /// A number or literal, verbatim.
    Raw(String),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

impl From<Value> for Node {
    fn from(value: Value) -> Self {
        match value {
            Value::String(text) => Node::Text(text),
            Value::Array(list) => Node::List(list.into_iter().map(Node::from).collect()),
            Value::Object(map) => {
                Node::Map(map.into_iter().map(|(key, value)| (key, value.into())).collect())
            }
            scalar => Node::Raw(scalar.to_string()),
        }
    }
}

impl Node {
    pub fn parse(text: &[u8]) -> Option<Self> {
        serde_json::from_slice::<Value>(text).ok().map(Node::from)
    }

    pub fn get_mut(&mut self, name: &str) -> Option<&mut Node> {
        match self {
            Node::Map(entries) => {
                entries.iter_mut().find(|(key, _)| key == name).map(|(_, node)| node)
            }
            _ => None,
        }
    }

    pub fn get(&self, name: &str) -> Option<&Node> {
        match self {
            Node::Map(entries) => entries.iter().find(|(key, _)| key == name).map(|(_, node)| node),
            _ => None,
        }
    }

    /// Sets `name` to `node`, and replaces an earlier value.
    pub fn set(&mut self, name: &str, node: Node) {
        let Node::Map(entries) = self else { return };
        match entries.iter_mut().find(|(key, _)| key == name) {
            Some((_, old)) => *old = node,
            None => entries.push((name.into(), node)),
        }
    }

    pub fn write(&self) -> String {
        let mut out = String::new();
        self.write_to(&mut out);
        out
    }

    fn write_to(&self, out: &mut String) {
        match self {
            Node::Raw(text) => out.push_str(text),
            Node::Text(text) => out.push_str(&Value::String(text.clone()).to_string()),
            Node::List(list) => {
                out.push('[');
                for (i, node) in list.iter().enumerate() {
                    out.push_str(if i > 0 { "," } else { "" });
                    node.write_to(out);
                }
                out.push(']');
            }
            Node::Map(entries) => {
                out.push('{');
                for (i, (key, node)) in entries.iter().enumerate() {
                    out.push_str(if i > 0 { "," } else { "" });
                    out.push_str(&Value::String(key.clone()).to_string());
                    out.push(':');
                    node.write_to(out);
                }
                out.push('}');
            }
        }
    }

    fn count(&self) -> usize {
        1 + match self {
            Node::List(list) => list.iter().map(Node::count).sum(),
            Node::Map(entries) => entries.iter().map(|(_, node)| node.count()).sum(),
            _ => 0,
        }
    }

    /// Node `at` in writing order.
    fn nth(&mut self, at: &mut usize) -> Option<&mut Node> {
        if *at == 0 {
            return Some(self);
        }
        *at -= 1;
        match self {
            Node::List(list) => list.iter_mut().find_map(|node| node.nth(at)),
            Node::Map(entries) => entries.iter_mut().find_map(|(_, node)| node.nth(at)),
            _ => None,
        }
    }
}

const NUMBERS: [&str; 24] = [
    "-1",
    "0",
    "1",
    "2",
    "3",
    "7",
    "-0.0",
    "0.5",
    "1e-320",
    "1e308",
    "1e999",
    "64",
    "255",
    "256",
    "65535",
    "65536",
    "65537",
    "1000000",
    "2147483648",
    "4294967295",
    "1000000000000",
    "9223372036854775807",
    "18446744073709551615",
    "18446744073709551616",
];
const LITERALS: [&str; 7] = ["null", "true", "false", "{}", "[]", "NaN", ""];
const TEXTS: [&str; 12] = [
    "",
    "..",
    "../../../../etc/passwd",
    "/dev/zero",
    "/proc/self/mem",
    "games/../../x",
    "\u{1b}[31m\u{1b}]0;title\u{7}",
    "a\u{0}b",
    "\u{202e}\u{fe0f}é漢",
    "\r\n",
    "Elixir.System",
    "cuda:0",
];

/// Changes one node or a few related nodes.
pub fn mutate(rng: &mut Rng, root: &mut Node) {
    let count = root.count();
    let other = root.nth(&mut rng.below(count)).cloned();
    let Some(node) = root.nth(&mut rng.below(count)) else { return };
    match (rng.below(12), node) {
        (0..5, Node::Raw(text)) => *text = number(rng, text),
        (0..4, Node::Text(text)) => *text = odd_text(rng, text),
        (0..2, Node::List(list)) if !list.is_empty() => drop(list.remove(rng.below(list.len()))),
        (2..4, Node::List(list)) if !list.is_empty() => {
            let (times, node) = (1 + rng.up_to(512), rng.pick(list).clone());
            // Limits the growth to some hundred kilobytes.
            let times = times.min(1 + 100_000 / node.write().len().max(1));
            list.extend(std::iter::repeat_n(node, times));
        }
        (0..2, Node::Map(entries)) if !entries.is_empty() => {
            drop(entries.remove(rng.below(entries.len())));
        }
        (2..3, Node::Map(entries)) if !entries.is_empty() => {
            let copy = rng.pick(entries).clone();
            entries.push(copy);
        }
        (3..5, Node::Map(entries)) if !entries.is_empty() => {
            let (from, to) = (rng.below(entries.len()), rng.below(entries.len()));
            match rng.below(3) {
                0 => entries[to].0 = odd_text(rng, &entries[from].0.clone()),
                1 => entries[to].0 = entries[from].0.clone(),
                _ => entries[to].1 = entries[from].1.clone(),
            }
        }
        (5, node) => *node = nested(rng, node.clone()),
        (6..8, node) => *node = Node::Raw((*rng.pick(&NUMBERS)).into()),
        (8, node) => *node = Node::Raw((*rng.pick(&LITERALS)).into()),
        (9, node) => *node = Node::Text(odd_text(rng, "x")),
        (_, node) => *node = other.unwrap_or(Node::List(vec![])),
    }
}

fn number(rng: &mut Rng, text: &str) -> String {
    let near = text.parse::<f64>().ok();
    match (rng.below(5), near) {
        (0, Some(n)) => (n + 1.0).to_string(),
        (1, Some(n)) => (n - 1.0).to_string(),
        (2, Some(n)) => (n * *rng.pick(&[2.0, 0.5, -1.0, 10.0])).to_string(),
        _ => (*rng.pick(&NUMBERS)).into(),
    }
}

fn odd_text(rng: &mut Rng, text: &str) -> String {
    let mut chars: Vec<char> = text.chars().collect();
    let at = rng.below(chars.len());
    match rng.below(5) {
        0 => return "x".repeat(1 + rng.up_to(20_000)),
        1 if !chars.is_empty() => drop(chars.remove(at)),
        2 => chars.insert(at, *rng.pick(&['0', 'A', '/', '\u{1b}', 'é', '"'])),
        _ => return (*rng.pick(&TEXTS)).into(),
    }
    chars.into_iter().collect()
}

fn nested(rng: &mut Rng, node: Node) -> Node {
    // The depth is limited because `write_to` is recursive, but exceeds the limit of parsers by far.
    (0..1 + rng.up_to(400)).fold(node, |inner, _| match rng.one_in(2) {
        true => Node::List(vec![inner]),
        false => Node::Map(vec![("a".into(), inner)]),
    })
}

/// Mutates JSON text as a tree, or as bytes if it does not parse.
pub fn mutate_text(rng: &mut Rng, text: &mut Vec<u8>) {
    match Node::parse(text) {
        Some(mut root) => {
            (0..1 + rng.up_to(3)).for_each(|_| mutate(rng, &mut root));
            *text = root.write().into_bytes();
        }
        None => crate::bytes::mutate(rng, text),
    }
}
