defmodule Sconce.Policy do
  alias Sconce.{Compat, Device, Error, Native, Options, Pressure, Session}
  alias Sconce.Policy.{Pass, Placement, Spec, Weights, Widths}

  @seed [type: :non_neg_integer, max: 2 ** 64 - 1]
  @device Device.option()
  @init [seed: @seed ++ [default: 0, doc: "Seed of the initial weights."]] ++
          @device
  @save [
    notes: [type: :any, default: nil, doc: "Data stored in the file; `info/1` returns it."],
    packed: [
      type: {:or, [nil, Session.Catalogue.weights()]},
      default: nil,
      doc:
        "Format of packed weights to store beside the others, as in `Sconce.Session.open/2`; `nil` stores none. " <>
          "See \"Packed weights\" below."
    ],
    weights: [
      type: :boolean,
      default: true,
      doc: "Whether to store the weights. Without them the file has packed weights only."
    ]
  ]
  @forward Pass.options()

  @weights [
    as: [
      type: {:in, [:shapes, :binaries, :nx]},
      default: :shapes,
      doc:
        "`:shapes` lists names and shapes. `:binaries` are maps of `data` (32-bit floats, little-endian and row-major), " <>
          "`shape` and `type`, and `:nx` are Nx tensors."
    ]
  ]

  @moduledoc """
  The weights of a `Sconce.Policy.Spec`: a handle that any number of processes and sessions may share. The weights
  themselves stay on the native side.

      iex> {:ok, policy} =
      ...>   Sconce.Policy.init([embedding: {:vector, 2}, heads: [action: {:categorical, 2}]], seed: 1)
      iex> policy
      #Sconce.Policy<vector 2 -> gru 256x2 -> action(2) · 612.0 k weights · cpu>

  To play, open a `Sconce.Session` over a policy. `forward/3` and `step/3` return logits.
  """

  import Sconce.Tensor, only: [is_tensor: 1]

  @enforce_keys [:ref, :device, :spec, :num_weights, :raw_width, :width, :trunk_width] ++
                  [:num_logits, :num_labels, :state_size, :bits]
  defstruct @enforce_keys ++ [:packed]

  @typedoc """
  A policy: its `spec`, `device` and sizes.

  `raw_width` is the width of a frame's raw row, `width` that of the embedded vector, and `trunk_width` that of the
  vector that the heads read. `state_size` is the number of floats in the state of one game. `bits` is 32, or the
  fewest bits of a weight in a policy of `Sconce.Compress.Policy`. `packed` is the format of packed weights that were
  mapped from a checkpoint, or `nil`.
  """
  @type t :: %__MODULE__{
          ref: reference,
          device: Device.t(),
          spec: Spec.t(),
          num_weights: non_neg_integer,
          raw_width: pos_integer,
          width: pos_integer,
          trunk_width: pos_integer,
          num_logits: pos_integer,
          num_labels: pos_integer,
          state_size: non_neg_integer,
          bits: 4 | 8 | 32,
          packed: Session.kept() | nil
        }

  @typedoc """
  Results of a pass: `logits` of `shape` (32-bit floats, little-endian, row-major), the `state` after the last
  frame, and the requested `taps`. As tensors see "Tensors" in `forward/3`.
  """
  @type output :: %{
          logits: binary | struct,
          shape: tuple,
          state: binary | struct | nil,
          taps: %{optional(atom | String.t()) => %{data: binary, shape: tuple} | struct}
        }

  @doc """
  Initializes a policy with random weights, for a Spec or the options of one (`Sconce.Policy.Spec.new/1`). The same
  seed gives the same weights.

  #{Options.docs(@init)}

      iex> spec = [embedding: {:vector, 2}, backbone: :mlp, hidden_sizes: [8], heads: [action: {:categorical, 2}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> policy
      #Sconce.Policy<vector 2 -> mlp 8 -> action(2) · 730 weights · cpu>
  """
  @spec init(Spec.t() | keyword, keyword) :: {:ok, t} | {:error, Error.t()}
  def init(spec, opts \\ []) do
    [seed: seed, device: device] = Options.validate!(opts, @init)
    spec = Spec.new(spec)

    with {:ok, device} <- Device.resolve(device),
         :ok <- Widths.warn(spec),
         {:ok, ref} <- spec |> Spec.to_native() |> Native.policy_init(seed),
         do: Placement.place(ref, device)
  end

  @doc """
  Loads a checkpoint.

  Kinds of error:

    * `:not_found` - the file does not exist;
    * `:corrupt` - the file is cut off or is not a checkpoint;
    * `:mismatch` - the file has a later version, or its weights do not fit its Spec, or it has packed weights only, of
      another CPU or version of Sconce;
    * `:non_finite` - a weight is NaN or infinite;
    * `:unavailable` - the device does not exist.

  #{Options.docs(@device)}

      iex> Sconce.Policy.load("missing.safetensors")
      {:error, %Sconce.Error{kind: :not_found, op: :load, details: %{what: "missing.safetensors"}}}

  `save/3` has an example with a checkpoint.
  """
  @spec load(Path.t(), keyword) :: {:ok, t} | {:error, Error.t()}
  def load(path, opts \\ []) do
    [device: device] = Options.validate!(opts, @device)
    path = Options.path!(path)

    with {:ok, device} <- Device.resolve(device),
         {:ok, ref} <- Native.policy_load(path) do
      Placement.place(ref, device)
    else
      {:error, error} -> {:error, Compat.Origin.mend(error, path)}
    end
  end

  @doc """
  Imports a policy of ExPhil, Edifice or Axon. `Sconce.Compat` lists the files and the policies that can be read.

  The notes say what was assumed, because the file does not say it. A policy that cannot be read exactly is an
  error.

  #{Options.docs(Compat.import_options())}

      iex> path = "test/golden/exphil/mlp_small.bin"
      iex> {:ok, policy, notes} = Sconce.Policy.import(path, from: :exphil)
      iex> policy
      #Sconce.Policy<melee packed 288 -> mlp 8 -> controller(81) · 10.6 k weights · cpu>
      iex> List.last(notes)
      "dropout: 0.0 instead of 0.1, which has no effect in ExPhil's training"

  Kinds of error:

    * `:not_found` - the file, a parameter or a value of the config does not exist;
    * `:corrupt` - the file is cut off, its sizes are wrong, or it is no policy;
    * `:mismatch` - a parameter has another shape, or Sconce has no such policy;
    * `:non_finite` - a parameter is NaN or infinite;
    * `:out_of_range`, `:out_of_memory` - the policy is too large.
  """
  @spec import(Path.t(), keyword) :: {:ok, t, [String.t()]} | {:error, Error.t()}
  def import(path, opts \\ []), do: Compat.import(path, opts)

  @doc """
  Exports a policy in a format that ExPhil (`:axon`) or Edifice (`:safetensors`) reads, and returns the bytes. With a path
  it writes the file atomically and returns `nil` instead.

  The notes say where the importing app will differ, such as in initial states that Axon draws anew.

      iex> {:ok, policy, _notes} = Sconce.Policy.import("test/golden/exphil/mlp_small.bin")
      iex> {:ok, bytes, []} = Sconce.Policy.export(policy, :axon)
      iex> byte_size(bytes) > 45_000
      true

  Kinds of error: `:mismatch`, ExPhil has no such policy; and those of `save/3`.
  """
  @spec export(t, :axon | :safetensors, Path.t() | nil) ::
          {:ok, binary | nil, [String.t()]} | {:error, Error.t()}
  def export(%__MODULE__{} = policy, format, path \\ nil),
    do: Compat.export(policy, format, path)

  @doc """
  Copies a policy to another device. The given policy stays valid. `nil`, or the device that already holds the
  weights, returns the policy itself.

      iex> {:ok, policy} = Sconce.Policy.init(embedding: {:vector, 2}, heads: [go: {:bernoulli, 1}])
      iex> {:ok, moved} = Sconce.Policy.to(policy, :cpu)
      iex> moved == policy
      true

  Kinds of error: `:unavailable`, the device does not exist; `:out_of_memory`, the device has too little memory, also
  after the garbage of this process is collected, see `Sconce.Pressure`.
  """
  @spec to(t, Device.choice() | Device.t() | nil) :: {:ok, t} | {:error, Error.t()}
  def to(%__MODULE__{} = policy, nil), do: {:ok, policy}

  def to(%__MODULE__{device: %Device{}} = policy, choice),
    do: Placement.to(policy, choice, Pressure.new(:serve))

  @doc """
  Saves a policy as a checkpoint. The file is replaced atomically: it is written under another name, then renamed.

  #{Options.docs(@save)}

      iex> path = Path.join(System.tmp_dir!(), "policy-#{System.unique_integer([:positive])}.safetensors")
      iex> spec = [embedding: {:vector, 2}, backbone: :mlp, hidden_sizes: [8], heads: [go: {:bernoulli, 1}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> Sconce.Policy.save(policy, path, notes: %{step: 100})
      :ok
      iex> {:ok, loaded} = Sconce.Policy.load(path)
      iex> {:ok, info} = Sconce.Policy.info(loaded)
      iex> info.notes
      %{"step" => 100}
      iex> File.rm!(path)
      :ok

  ## Packed weights

  A session on a CPU packs the weights of its policy: it copies them to the order in which a step reads them. With
  `:packed` the file holds this copy too, in one format. `load/2` then maps it: it reads no other weights, sessions and
  servings pack nothing, and all processes of the operating system that map the file share its memory.

      iex> path = Path.join(System.tmp_dir!(), "packed-#{System.unique_integer([:positive])}.safetensors")
      iex> spec = [embedding: {:vector, 2}, backbone: :mlp, hidden_sizes: [8], heads: [go: {:bernoulli, 1}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> :ok = Sconce.Policy.save(policy, path, packed: :f32)
      iex> {:ok, loaded} = Sconce.Policy.load(path)
      iex> {loaded.packed, Sconce.Policy.weights(loaded) == Sconce.Policy.weights(policy)}
      {:f32, true}
      iex> {:ok, session} = Sconce.Session.open(loaded)
      iex> {:ok, _action} = Sconce.Session.act(session, [0.0, 1.0])
      iex> File.rm!(path)
      :ok

  Packed weights are for the features of the CPU that packed them, and for the version of Sconce. Another CPU or version
  reads the other weights of the file and packs them: `packed` of the loaded policy is `nil`. With `weights: false` there
  are no others, and `load/2` returns `:mismatch`. `mix sconce.doctor` prints what this machine maps.

  Whatever needs the weights themselves (`forward/3`, training, another device or format) reads them from the file when
  it needs them, and is `:unavailable` if the file has packed weights only. Windows, such as the first one of a game in
  mode `:carry`, are computed with the packed weights, one frame after the other.

  The file may be replaced by another while it is mapped, as `save/3` does: loaded policies keep their weights. If a
  program changes or cuts the file itself, the next decision is an error of kind `:corrupt`, and the policy has to be
  loaded again.
  """
  @spec save(t, Path.t(), keyword) :: :ok | {:error, Error.t()}
  def save(%__MODULE__{ref: ref}, path, opts \\ []) do
    case Options.validate!(opts, @save) do
      [notes: notes, packed: nil, weights: true] ->
        Native.policy_save(ref, Options.path!(path), notes)

      [notes: _notes, packed: nil, weights: false] ->
        Options.argument!("packed", nil, "a format of packed weights, with weights: false")

      [notes: notes, packed: format, weights: weights?] ->
        packed = {Session.format(format), not weights?}
        Native.policy_save_packed(ref, Options.path!(path), notes, packed)
    end
  end

  @doc """
  Returns the properties of a policy: `spec`, `num_weights`, widths, `device`, and the `notes` of its checkpoint,
  with strings as keys. `packed` is that of the policy.

      iex> {:ok, policy} = Sconce.Policy.init(embedding: {:vector, 2}, heads: [go: {:bernoulli, 1}])
      iex> {:ok, info} = Sconce.Policy.info(policy)
      iex> {info.width, info.trunk_width, info.num_logits, info.device, info.notes}
      {2, 256, 1, "cpu", nil}
  """
  @spec info(t) :: {:ok, map} | {:error, Error.t()}
  def info(%__MODULE__{ref: ref, device: %Device{} = device}) do
    with {:ok, {info, notes}} <- Native.policy_info(ref) do
      own = %{spec: Spec.from_native(info.spec), notes: notes, device: to_string(device)}
      {:ok, info |> Map.merge(own) |> Map.update!(:packed, &packed/1)}
    end
  end

  @doc """
  Returns the names and shapes of all weights, sorted by name, or with `:as` their values in a map by name.

  #{Options.docs(@weights)}

      iex> spec = [embedding: {:vector, 2}, backbone: :mlp, hidden_sizes: [8], heads: [go: {:bernoulli, 1}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, weights} = Sconce.Policy.weights(policy)
      iex> Enum.take(weights, 2)
      [{"backbone.layers.0.dense.bias", {8}}, {"backbone.layers.0.dense.weight", {8, 2}}]
      iex> {:ok, values} = Sconce.Policy.weights(policy, as: :binaries)
      iex> {:ok, bias} = Sconce.Policy.weight(policy, "heads.go_logits.bias")
      iex> values["heads.go_logits.bias"] == %{data: bias, shape: {1}, type: {:f, 32}}
      true
  """
  @spec weights(t, keyword) ::
          {:ok, [{String.t(), tuple}] | %{String.t() => map | struct}} | {:error, Error.t()}
  def weights(policy, opts \\ [])

  def weights(%__MODULE__{} = policy, opts) do
    [as: as] = Options.validate!(opts, @weights)
    Weights.all(policy, as)
  end

  @doc """
  Returns a copy of the policy with other values of some weights, or of all: a map by name. The copy has the device and
  the notes of the policy; the policy itself does not change.

  A value has the shape of the weight. It is an Nx tensor of real numbers, a list of any nesting, a number, a map of
  `data`, `shape` and `type` as `weights/2` returns it, or a binary of 32-bit floats, whose shape is that of the weight.
  Numbers are rounded to 32 bits. Other names are an error of kind `:not_found`, other shapes one of kind `:mismatch`,
  and values that are not finite one of kind `:non_finite`; each error names the weight. A replaced weight has no codes.

      iex> spec = [embedding: {:vector, 2}, backbone: :mlp, hidden_sizes: [8], heads: [go: {:bernoulli, 1}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, eager} = Sconce.Policy.put_weights(policy, %{"heads.go_logits.bias" => [2.5]})
      iex> Sconce.Policy.weight(eager, "heads.go_logits.bias")
      {:ok, <<2.5::float-32-little>>}
      iex> {:error, error} = Sconce.Policy.put_weights(policy, %{"heads.go_logits.bias" => [2.5, 1.0]})
      iex> Exception.message(error)
      "put_weights: heads.go_logits.bias: expected the shape {1}, got {2}"

  Weights that an app trains with Nx come back with `as: :nx`:

  ```elixir
  {:ok, weights} = Sconce.Policy.weights(policy, as: :nx)
  scaled = Map.new(weights, fn {name, tensor} -> {name, Nx.multiply(tensor, 0.5)} end)
  {:ok, scaled} = Sconce.Policy.put_weights(policy, scaled)
  ```
  """
  @spec put_weights(t, %{String.t() => term}) :: {:ok, t} | {:error, Error.t()}
  def put_weights(%__MODULE__{device: %Device{} = device} = policy, weights)
      when is_map(weights) and not is_struct(weights) do
    with {:ok, ref} <- Weights.put(policy, weights), do: wrap(ref, device)
  end

  def put_weights(%__MODULE__{device: %Device{}}, other),
    do: Options.argument!("weights", other, "a map of values by name")

  @doc """
  Returns the values of one weight: 32-bit floats, little-endian, row-major. `weights/1` lists the names.

      iex> spec = [embedding: {:vector, 2}, backbone: :mlp, hidden_sizes: [8], heads: [go: {:bernoulli, 1}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, numbers} = Sconce.Policy.weight(policy, "backbone.layers.0.dense.weight")
      iex> byte_size(numbers)
      64
  """
  @spec weight(t, String.t()) :: {:ok, binary} | {:error, Error.t()}
  def weight(%__MODULE__{ref: ref}, name) do
    if is_binary(name) and String.valid?(name),
      do: Native.policy_weight(ref, name),
      else: Options.argument!("name", name, "the name of a weight")
  end

  @doc """
  Computes the logits of every frame, `{b, t, num_logits}`, or of the last frames only, `{b, num_logits}`.

  `frames` are `b` lists of `t` frames each, in any form that `Sconce.Embedding.pack/2` takes, one binary of raw
  rows `[b, t, raw_width]`, or an Nx tensor of them. Frames are checked as in a session. No previous action is filled in
  where a frame has none. A policy with a queue reads the previous actions of earlier frames, unless `queue` is given;
  with a delay, these actions are older than the latest inputs.

  #{Options.docs(@forward)}

      iex> {:ok, policy} = Sconce.Policy.init(embedding: {:vector, 2}, heads: [go: {:bernoulli, 1}])
      iex> {:ok, out} = Sconce.Policy.forward(policy, [[[0.0, 1.0], [0.5, 1.0], [1.0, 1.0]]])
      iex> {out.shape, byte_size(out.logits)}
      {{1, 3, 1}, 12}

  A pass on the CPU that needs more memory than is available is an error of kind `:out_of_memory`. Its details hold
  the needed `bytes`, the `available` bytes, and the `bound` that limits them.

  ## Taps

  Taps are activations of the pass by name, each `%{data: binary, shape: tuple}` in the format of `logits`:

    * `embedding`, `{b, t, width}`;
    * `trunk`, `{b, t, trunk_width}`: the vectors that the heads read, before `project_out`;
    * activations of layers (`Sconce.Temporal.taps/1`) with the number of the layer in front, such as
      `0.pre_conv`. Layers of a block are counted one by one.

  Taps cover all frames, for any `:return_sequences`. A name that the backbone does not have is an error of kind
  `:mismatch`, whose `expected` lists the names.

      iex> {:ok, policy} = Sconce.Policy.init(embedding: {:vector, 2}, heads: [go: {:bernoulli, 1}])
      iex> {:ok, out} = Sconce.Policy.forward(policy, [[[0.0, 1.0], [0.5, 1.0]]], taps: [:trunk])
      iex> out.taps.trunk.shape
      {1, 2, 256}

  ## Directions

  With `project_out: u` the heads read `x - (x . u) u / (u . u)` instead of a trunk vector `x`, so that a direction
  found by a probe has no effect on the action. The whole span of several vectors is removed. The state does not
  change. A vector of another length is an error of kind `:mismatch`, and a vector of zeros of kind `:out_of_range`.

  ## Tensors

  If Nx is loaded, `frames` may be a tensor of raw rows, and so may `:labels`, `:queue` and `:state`. Other types than
  f32 are converted, for labels without loss. A tensor of fewer dimensions is one game or one frame; the logits have
  the same leading dimensions and their names:

  | frames | logits | with `return_sequences: false` |
  |---|---|---|
  | `{b, t, raw_width}` | `{b, t, num_logits}` | `{b, num_logits}` |
  | `{t, raw_width}` | `{t, num_logits}` | `{num_logits}` |
  | `{raw_width}` | `{num_logits}` | `{num_logits}` |

  The state is `{b, state_size}`, or nil for a policy without memory, and taps have the shapes above, all in f32. With
  `as: :nx` other frames give tensors, too, of the shapes for `{b, t, raw_width}`.

  ```elixir
  {:ok, policy} = Sconce.Policy.init(embedding: {:vector, 4}, heads: [move: {:categorical, 3}])
  frames = Nx.broadcast(0.5, {32, 60, 4})
  {:ok, %{logits: logits, state: state}} = Sconce.Policy.forward(policy, frames, return_sequences: false)
  Nx.shape(logits) #=> {32, 3}
  {:ok, next} = Sconce.Policy.step(policy, frames[[.., 0]], state: state)
  ```

  Tensors of `Nx.BinaryBackend` are read and made without a copy of their bytes on the side of Elixir; those of other
  backends are copied to memory of the CPU. Without Nx, `as: :nx` raises `ArgumentError`.

  Frames in memory of EXLA on the card of the policy (`EXLA.Backend`, client `:cuda`, the same card) are copied there, and
  the logits are a new tensor of EXLA on that card, by default and with `as: :card`. `as: :card` refuses all other frames
  by an error that names their backend; without it they cross through the CPU, as do all other outputs and inputs.
  Frames of `{:vector, n}` never leave the card, unless a `:queue` is given; the CPU embeds those of other embeddings.
  The call waits for EXLA's work on the frames, and has finished when it returns. It keeps both tensors even if the
  caller dies, but no other process may deallocate or donate the frames (`Nx.backend_deallocate/1`) meanwhile. This path
  needs Nx 0.8 or newer; `Sconce.Serving.forward/4` does not take it. It was tested on an emulated card with a stand-in
  for EXLA, and has run neither on a real card nor with EXLA itself.
  """
  @spec forward(t, [[term]] | binary | struct, keyword) :: {:ok, output} | {:error, Error.t()}
  def forward(policy, frames, opts \\ []),
    do: Pass.forward(policy, frames, Options.validate!(opts, @forward))

  @doc """
  Computes the logits of one more frame of each game, `{b, num_logits}`, from the `state:` of the previous call.

  `frames` are a list of `b` frames, one binary `[b, raw_width]`, or a tensor `{b, raw_width}` or `{raw_width}`. The
  options are those of `forward/3`. Taps have one frame, `{b, 1, ..}`.

      iex> spec = [embedding: {:vector, 2}, hidden_size: 8, heads: [go: {:bernoulli, 1}]]
      iex> {:ok, policy} = Sconce.Policy.init(spec, seed: 1)
      iex> {:ok, first} = Sconce.Policy.step(policy, [[0.0, 1.0]])
      iex> {:ok, next} = Sconce.Policy.step(policy, [[0.5, 1.0]], state: first.state)
      iex> {next.shape, next.logits == first.logits}
      {{1, 1}, false}
  """
  @spec step(t, [term] | binary | struct, keyword) :: {:ok, output} | {:error, Error.t()}
  def step(policy, frames, opts \\ [])

  def step(%__MODULE__{} = policy, frames, opts) when length(frames) >= 0,
    do: Pass.step(policy, Enum.map(frames, &[&1]), Options.keyword!(opts))

  def step(%__MODULE__{} = policy, frames, opts) when is_binary(frames) do
    rows = div(byte_size(frames), 4 * policy.raw_width)
    Pass.step(policy, frames, opts |> Options.keyword!() |> Keyword.put_new(:batch, max(rows, 1)))
  end

  def step(%__MODULE__{} = policy, frames, opts) when is_tensor(frames),
    do: Pass.step(policy, frames, Options.keyword!(opts))

  def step(%__MODULE__{}, other, _opts),
    do: {:error, Pass.mismatch("a list of frames, a binary or a tensor", Pass.shown(other))}

  @doc false
  # The policy of a native handle whose weights are on this device.
  @spec wrap(reference, Device.t()) :: {:ok, t} | {:error, Error.t()}
  def wrap(ref, device) do
    with {:ok, {info, _notes}} <- Native.policy_info(ref) do
      own = %{ref: ref, device: device, spec: Spec.from_native(info.spec)}
      {:ok, struct!(__MODULE__, info |> Map.merge(own) |> Map.update!(:packed, &packed/1))}
    end
  end

  defp packed(nil), do: nil
  defp packed(format), do: Session.kept(format)

  defimpl Inspect do
    alias Sconce.Policy.Spec

    def inspect(policy, _opts) do
      model = Spec.summary(policy.spec, " #{policy.width}")

      "#Sconce.Policy<#{model} · #{count(policy.num_weights)}#{bits(policy.bits)}#{packed(policy.packed)} · #{policy.device}>"
    end

    defp packed(nil), do: ""
    defp packed(format), do: " · packed #{format}"

    defp bits(32), do: ""
    defp bits(bits), do: " · int#{bits}"

    defp count(n) when n >= 1_000_000, do: "#{Float.round(n / 1.0e6, 1)} M weights"
    defp count(n) when n >= 1_000, do: "#{Float.round(n / 1.0e3, 1)} k weights"
    defp count(n), do: "#{n} weights"
  end
end
