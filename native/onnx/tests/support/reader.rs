//! A reader of models in the wire format of Protocol Buffers.

/// A field of a message: its number and its value.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Field<'a> {
    Int(u64, u64),
    Float(u64, f32),
    Bytes(u64, &'a [u8]),
}

/// The fields of a message. Panics for bytes that are not a message.
pub fn fields(mut bytes: &[u8]) -> Vec<Field<'_>> {
    let mut all = vec![];
    while !bytes.is_empty() {
        let key = varint(&mut bytes);
        let number = key >> 3;
        all.push(match key & 7 {
            0 => Field::Int(number, varint(&mut bytes)),
            2 => {
                let length = varint(&mut bytes) as usize;
                Field::Bytes(number, bytes.split_off(..length).expect("a whole field"))
            }
            5 => {
                let four = bytes.split_off(..4).expect("a whole number");
                Field::Float(number, f32::from_le_bytes(four.try_into().unwrap()))
            }
            other => panic!("wire type {other}"),
        });
    }
    all
}

fn varint(bytes: &mut &[u8]) -> u64 {
    let mut value = 0;
    for shift in (0..64).step_by(7) {
        let byte = *bytes.split_off_first().expect("a whole number");
        value |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return value;
        }
    }
    panic!("a number of more than 64 bits");
}

fn bytes_of(message: &[u8], wanted: u64) -> Vec<&[u8]> {
    let of = |field| match field {
        Field::Bytes(number, bytes) if number == wanted => Some(bytes),
        _ => None,
    };
    fields(message).into_iter().filter_map(of).collect()
}

fn texts(message: &[u8], wanted: u64) -> Vec<String> {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).unwrap();
    bytes_of(message, wanted).into_iter().map(text).collect()
}

fn ints(message: &[u8], wanted: u64) -> Vec<i64> {
    let of = |field| match field {
        Field::Int(number, value) if number == wanted => Some(value as i64),
        _ => None,
    };
    fields(message).into_iter().filter_map(of).collect()
}

#[derive(Debug)]
pub struct Node {
    pub op: String,
    pub name: String,
    pub inputs: Vec<String>,
    pub outputs: Vec<String>,
    /// The graphs among its attributes.
    pub graphs: Vec<Graph>,
}

#[derive(Debug)]
pub struct Tensor {
    pub name: String,
    pub dims: Vec<i64>,
    /// Number of the type: 1 is f32, 7 i64, 11 f64.
    pub kind: i64,
    pub elements: Vec<u8>,
}

/// A dimension of an input or an output: a size, or the name of any size.
pub type Dim = Result<i64, String>;

#[derive(Debug)]
pub struct Port {
    pub name: String,
    pub kind: i64,
    pub shape: Vec<Dim>,
}

#[derive(Debug)]
pub struct Graph {
    pub name: String,
    pub nodes: Vec<Node>,
    pub tensors: Vec<Tensor>,
    pub inputs: Vec<Port>,
    pub outputs: Vec<Port>,
}

#[derive(Debug)]
pub struct Model {
    pub ir_version: i64,
    pub producer: String,
    /// Domain and version of the operators.
    pub opsets: Vec<(String, i64)>,
    pub metadata: Vec<(String, String)>,
    pub graph: Graph,
}

pub fn model(bytes: &[u8]) -> Model {
    let one = |of: Vec<String>| of.into_iter().next().unwrap_or_default();
    let opset = |of: &[u8]| (one(texts(of, 1)), ints(of, 2)[0]);
    let pair = |of: &[u8]| (one(texts(of, 1)), one(texts(of, 2)));
    Model {
        ir_version: ints(bytes, 1)[0],
        producer: one(texts(bytes, 2)),
        opsets: bytes_of(bytes, 8).into_iter().map(opset).collect(),
        metadata: bytes_of(bytes, 14).into_iter().map(pair).collect(),
        graph: graph(bytes_of(bytes, 7)[0]),
    }
}

fn graph(bytes: &[u8]) -> Graph {
    let all = |number| bytes_of(bytes, number).into_iter();
    Graph {
        name: texts(bytes, 2).concat(),
        nodes: all(1).map(node).collect(),
        tensors: all(5).map(tensor).collect(),
        inputs: all(11).map(port).collect(),
        outputs: all(12).map(port).collect(),
    }
}

fn node(bytes: &[u8]) -> Node {
    let attributes = bytes_of(bytes, 5);
    let graphs = attributes.into_iter().flat_map(|attribute| bytes_of(attribute, 6));
    Node {
        op: texts(bytes, 4).concat(),
        name: texts(bytes, 3).concat(),
        inputs: texts(bytes, 1),
        outputs: texts(bytes, 2),
        graphs: graphs.map(graph).collect(),
    }
}

fn tensor(bytes: &[u8]) -> Tensor {
    Tensor {
        name: texts(bytes, 8).concat(),
        dims: ints(bytes, 1),
        kind: ints(bytes, 2)[0],
        elements: bytes_of(bytes, 9).concat(),
    }
}

fn port(bytes: &[u8]) -> Port {
    let kind = bytes_of(bytes, 2)[0];
    let kind = bytes_of(kind, 1)[0];
    let shape = bytes_of(kind, 2)[0];
    let dim = |of: &[u8]| ints(of, 1).first().copied().ok_or_else(|| texts(of, 2).concat());
    Port {
        name: texts(bytes, 1).concat(),
        kind: ints(kind, 1)[0],
        shape: bytes_of(shape, 1).into_iter().map(dim).collect(),
    }
}
