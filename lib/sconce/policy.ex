defmodule Sconce.Policy do
  alias Sconce.{Device, Embedding, Error, Native, Options, Projection}
  alias Sconce.Native.Call
  alias Sconce.Policy.{Head, Spec, Widths}

  @seed [type: :non_neg_integer, max: 2 ** 64 - 1]
  @device Device.option()
  @init [seed: @seed ++ [default: 0, doc: "Of the first weights: one seed, one policy."]] ++
          @device
  @save [notes: [type: :any, default: nil, doc: "Data that goes into the file, see `info/1`."]]
  @forward [
    batch: [type: :pos_integer, default: 1, doc: "Games, where the frames are one binary."],
    labels: [
      type: :any,
      default: nil,
      doc:
        "`[b, t, num_labels]`, the actions that autoregressive heads condition on: lists of " <>
          "integers, or a binary of 16-bit ones, little-endian; where a head chooses numbers, lists of " <>
          "numbers, or a binary of 32-bit floats."
    ],
    queue: [
      type: :any,
      default: nil,
      doc:
        "`[b, t, queue_depth, num_labels]`, the inputs that were given last before each frame, newest " <>
          "first and the integer 65535 for none (in a binary of floats infinity), as `labels`; `nil` takes them from the previous actions of the frames."
    ],
    frame_delay: [
      type: {:or, [:non_neg_integer, nil]},
      max: 10_000,
      default: nil,
      doc: "For the delay id; `nil` is that of the training, or 0. One of several wants it said."
    ],
    state: [
      type: {:or, [:string, nil]},
      default: nil,
      doc: "What an earlier call gave; `nil` for games that begin."
    ],
    return_sequences: [
      type: :boolean,
      default: true,
      doc: "Logits of every frame, or (`false`) of the last frame of each game alone."
    ],
    taps: [
      type: {:or, [:boolean, {:list, :any}]},
      default: false,
      doc: "Names of activations to read from this pass; `true` for all there are."
    ],
    project_out: [
      type: :any,
      default: nil,
      doc:
        "A vector of `trunk_width` numbers, or several, taken out of the trunk vectors before the " <>
          "heads read them: lists of numbers, a binary of 32-bit floats or an Nx tensor."
    ]
  ]

  @moduledoc """
  The weights of a `Sconce.Policy.Spec`. They stay on the native side; this is a handle, and may be
  shared by any number of processes and sessions.

      iex> {:ok, policy} =
      ...>   Sconce.Policy.init([embedding: {:vector, 2}, heads: [action: {:categorical, 2}]], seed: 1)
      iex> policy
      #Sconce.Policy<vector 2 -> gru 256x2 -> action(2) · 612.0 k weights · cpu>

  To play, open a `Sconce.Session` over it. `forward/3` and `step/3` are for looking at logits.
  """

  @enforce_keys [:ref, :device, :spec, :num_weights, :raw_width, :width, :trunk_width] ++
                  [:num_logits, :num_labels, :state_size]
  defstruct @enforce_keys

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
          state_size: non_neg_integer
        }

  @typedoc """
  `logits` (`shape`, 32-bit floats, little-endian, row-major), the `state` after the last frame, and
  the `taps` that were asked for.
  """
  @type output :: %{
          logits: binary,
          shape: tuple,
          state: binary,
          taps: %{optional(atom | String.t()) => %{data: binary, shape: tuple}}
        }

  @doc """
  New weights for a Spec, or for the options of one (`Sconce.Policy.Spec.new/1`).

  #{Options.docs(@init)}
  """
  @spec init(Spec.t() | keyword, keyword) :: {:ok, t} | {:error, Error.t()}
  def init(spec, opts \\ []) do
    [seed: seed, device: device] = Options.validate!(opts, @init)
    spec = Spec.new(spec)

    with {:ok, device} <- Device.resolve(device),
         :ok <- Widths.warn(spec),
         {:ok, ref} <- spec |> Spec.to_native() |> Native.policy_init(seed),
         do: place(ref, device)
  end

  @doc """
  Reads a checkpoint.

  Kinds of error: `:not_found`; `:corrupt`, the file is cut off or something else; `:mismatch`, it
  is of a later version or its weights are not those of its Spec; `:non_finite`; `:unavailable`, there
  is no such device.

  #{Options.docs(@device)}
  """
  @spec load(Path.t(), keyword) :: {:ok, t} | {:error, Error.t()}
  def load(path, opts \\ []) do
    [device: device] = Options.validate!(opts, @device)
    path = Options.path!(path)

    with {:ok, device} <- Device.resolve(device),
         {:ok, ref} <- Native.policy_load(path),
         do: place(ref, device)
  end

  @doc """
  The same policy on another device, beside the one that is given: its weights are copied there. `nil`, or the
  device that it is on, gives the policy itself.

      iex> {:ok, policy} = Sconce.Policy.init(embedding: {:vector, 2}, heads: [go: {:bernoulli, 1}])
      iex> {:ok, moved} = Sconce.Policy.to(policy, :cpu)
      iex> moved == policy
      true

  Kinds of error: `:unavailable`, there is no such device; `:out_of_memory`, it has no room.
  """
  @spec to(t, Device.choice() | Device.t() | nil) :: {:ok, t} | {:error, Error.t()}
  def to(%__MODULE__{} = policy, nil), do: {:ok, policy}

  def to(%__MODULE__{device: %Device{}} = policy, %Device{} = device) do
    if Device.same?(policy.device, device),
      do: {:ok, %{policy | device: device}},
      else: move(policy.ref, device)
  end

  def to(%__MODULE__{device: %Device{}} = policy, choice),
    do: with({:ok, device} <- Device.resolve(choice), do: to(policy, device))

  # New weights are on the CPU.
  defp place(ref, %Device{kind: :cpu} = device), do: wrap(ref, device)
  defp place(ref, device), do: move(ref, device)

  defp move(ref, device) do
    with {:ok, ref} <- moved(ref, to_string(device)), do: wrap(ref, device)
  end

  # What fills the card may be policies that this process has let go of, and still holds.
  defp moved(ref, device) do
    with {:error, %Error{kind: :out_of_memory}} <- Call.run(&Native.policy_on(ref, &1, device)) do
      :erlang.garbage_collect()
      Call.run(&Native.policy_on(ref, &1, device))
    end
  end

  @doc """
  Writes a checkpoint: beside `path` first, then in its place.

  #{Options.docs(@save)}
  """
  @spec save(t, Path.t(), keyword) :: :ok | {:error, Error.t()}
  def save(%__MODULE__{ref: ref}, path, opts \\ []) do
    [notes: notes] = Options.validate!(opts, @save)
    Native.policy_save(ref, Options.path!(path), notes)
  end

  @doc """
  What a policy is: `spec`, `num_weights`, widths, `device`, and the `notes` of its checkpoint with
  text as keys.

      iex> {:ok, policy} = Sconce.Policy.init(embedding: {:vector, 2}, heads: [go: {:bernoulli, 1}])
      iex> {:ok, info} = Sconce.Policy.info(policy)
      iex> {info.width, info.trunk_width, info.num_logits, info.device, info.notes}
      {2, 256, 1, "cpu", nil}
  """
  @spec info(t) :: {:ok, map} | {:error, Error.t()}
  def info(%__MODULE__{ref: ref, device: %Device{} = device}) do
    with {:ok, {info, notes}} <- Native.policy_info(ref) do
      own = %{spec: Spec.from_native(info.spec), notes: notes, device: to_string(device)}
      {:ok, Map.merge(info, own)}
    end
  end

  @doc """
  Names and shapes of all weights, in the order of their names.
  """
  @spec weights(t) :: {:ok, [{String.t(), [pos_integer]}]} | {:error, Error.t()}
  def weights(%__MODULE__{ref: ref}), do: Native.policy_weights(ref)

  @doc """
  The numbers of one weight: 32-bit floats, little-endian, row-major.
  """
  @spec weight(t, String.t()) :: {:ok, binary} | {:error, Error.t()}
  def weight(%__MODULE__{ref: ref}, name) do
    if is_binary(name) and String.valid?(name),
      do: Native.policy_weight(ref, name),
      else: Options.argument!("name", name, "that of a weight")
  end

  @doc """
  Logits of every frame, `shape` `{b, t, num_logits}`; of the last ones alone `{b, num_logits}`.

  `frames` are `b` lists of `t` frames each (whatever `Sconce.Embedding.pack/2` takes), or one binary
  of raw rows `[b, t, raw_width]`. They are checked as in a session; a frame without a previous
  action has none here. What a policy with a queue reads besides is the previous actions of the frames
  before, unless `queue` says more: with a delay these are not the latest inputs.

  #{Options.docs(@forward)}

      iex> {:ok, policy} = Sconce.Policy.init(embedding: {:vector, 2}, heads: [go: {:bernoulli, 1}])
      iex> {:ok, out} = Sconce.Policy.forward(policy, [[[0.0, 1.0], [0.5, 1.0], [1.0, 1.0]]])
      iex> {out.shape, byte_size(out.logits)}
      {{1, 3, 1}, 12}

  A pass on a CPU that needs more memory than is available is refused by an error of kind `:out_of_memory`, whose
  details say what it needs, what is `available`, and its `bound`.

  ## Taps

  Activations of the pass by name, each `%{data: binary, shape: tuple}` as `logits` are: `embedding`
  `{b, t, width}`, `trunk` `{b, t, trunk_width}` (what the heads read, before anything is projected
  out), and those of the layers (`Sconce.Temporal.taps/1`), which begin with the layer's number, such as
  `0.pre_conv`; the layers of a block are counted one by one. They cover all frames, whatever
  `:return_sequences` is. A name that the backbone does not have is a `:mismatch` whose `expected` lists
  those there are.

      iex> {:ok, policy} = Sconce.Policy.init(embedding: {:vector, 2}, heads: [go: {:bernoulli, 1}])
      iex> {:ok, out} = Sconce.Policy.forward(policy, [[[0.0, 1.0], [0.5, 1.0]]], taps: [:trunk])
      iex> out.taps.trunk.shape
      {1, 2, 256}

  ## Directions

  With `project_out: u` the heads read `x - (x . u) u / (u . u)` instead of a trunk vector `x`: a
  direction that a probe found does not reach the action. Of several vectors the whole span is taken
  out. The state is that of the policy as it is. A vector of another length is a `:mismatch`, one of
  zeros `:out_of_range`.
  """
  @spec forward(t, [[term]] | binary, keyword) :: {:ok, output} | {:error, Error.t()}
  def forward(policy, frames, opts \\ []) do
    options = Options.validate!(opts, @forward)

    pass(policy, frames, options, fn rows, shape, given, look ->
      Call.run(&Native.policy_forward(policy.ref, &1, rows, shape, given, look))
    end)
  end

  @doc false
  def forward_options, do: @forward

  @doc false
  # A pass by `run`, which is given rows, shape, what may be left out, and what is wanted.
  @spec pass(
          t,
          [[term]] | binary,
          keyword,
          (binary, tuple, tuple, map -> {:ok, tuple} | {:error, Error.t()})
        ) ::
          {:ok, output} | {:error, Error.t()}
  def pass(policy, frames, options, run) do
    with {:ok, rows, batch, time} <- rows(policy, frames, options[:batch]),
         {:ok, given} <- given(policy, options),
         {:ok, {logits, state, taps}} <- run.(rows, {batch, time}, given, look(options)) do
      shape =
        if options[:return_sequences],
          do: {batch, time, policy.num_logits},
          else: {batch, policy.num_logits}

      {:ok, %{logits: logits, shape: shape, state: state, taps: taps(taps, options[:taps])}}
    end
  end

  defp taps(taps, wanted) do
    taps =
      for {name, dims, data} <- taps,
          into: %{},
          do: {name, %{data: data, shape: List.to_tuple(dims)}}

    if is_list(wanted), do: Map.new(wanted, &{&1, taps[Spec.text(&1)]}), else: taps
  end

  @doc """
  Logits of one more frame of each game, `shape` `{b, num_logits}`; with `state:` from the call
  before. `frames` are a list of `b` frames, or one binary `[b, raw_width]`. Options as `forward/3`;
  taps are of one frame, `{b, 1, ..}`.
  """
  @spec step(t, [term] | binary, keyword) :: {:ok, output} | {:error, Error.t()}
  def step(policy, frames, opts \\ [])

  def step(%__MODULE__{} = policy, frames, opts) when length(frames) >= 0,
    do: policy |> forward(Enum.map(frames, &[&1]), one_frame(opts)) |> last_frame()

  def step(%__MODULE__{} = policy, frames, opts) when is_binary(frames) do
    rows = div(byte_size(frames), 4 * policy.raw_width)
    opts = opts |> one_frame() |> Keyword.put_new(:batch, max(rows, 1))
    policy |> forward(frames, opts) |> last_frame()
  end

  def step(%__MODULE__{}, other, _opts),
    do: {:error, mismatch("a list of frames or a binary", shown(other))}

  # So that more than one is seen.
  defp one_frame(opts), do: opts |> Options.keyword!() |> Keyword.replace(:return_sequences, true)

  defp last_frame({:ok, %{shape: {b, 1, n}} = out}), do: {:ok, %{out | shape: {b, n}}}
  defp last_frame({:ok, _}), do: {:error, mismatch("one frame of each game", "more")}
  defp last_frame(error), do: error

  defp rows(policy, rows, batch) when is_binary(rows) do
    time = div(byte_size(rows), 4 * policy.raw_width * batch)

    if time > 0 and byte_size(rows) == 4 * policy.raw_width * batch * time,
      do: {:ok, rows, batch, time},
      else: {:error, mismatch("[#{batch}, t, #{policy.raw_width}]", "#{byte_size(rows)} bytes")}
  end

  defp rows(%{spec: %{embedding: embedding}}, [[_ | _] = first | _] = games, _batch) do
    with time when time != nil <- size(first),
         games? when games? != nil <- size(games),
         true <- Enum.all?(games, &(size(&1) == time)),
         {:ok, rows} <- pack(games, embedding) do
      {:ok, rows, length(games), time}
    else
      {:error, _error} = error -> error
      _unlike -> {:error, mismatch("games of the same length", "others")}
    end
  end

  defp rows(_policy, other, _batch),
    do: {:error, mismatch("lists of frames or a binary", shown(other))}

  # Of a proper list.
  defp size(list) when length(list) >= 0, do: length(list)
  defp size(_other), do: nil

  defp shown(term), do: inspect(term, limit: 5, printable_limit: 80)

  defp pack(games, embedding) do
    games
    |> Stream.concat()
    |> Enum.reduce_while({:ok, []}, fn frame, {:ok, rows} ->
      case Embedding.pack(embedding, frame) do
        {:ok, row} -> {:cont, {:ok, [rows | row]}}
        error -> {:halt, error}
      end
    end)
    |> case do
      {:ok, rows} -> {:ok, IO.iodata_to_binary(rows)}
      error -> error
    end
  end

  defp given(policy, options) do
    type = Head.type(policy.spec.heads)

    with {:ok, labels} <- labels(options[:labels], type),
         {:ok, queue} <- labels(options[:queue], type),
         {:ok, project_out} <- Projection.pack(options[:project_out]),
         do: {:ok, {labels, queue, options[:state], project_out}}
  end

  defp look(options) do
    %{
      return_sequences: options[:return_sequences],
      frame_delay: options[:frame_delay],
      taps: names(options[:taps])
    }
  end

  defp names(taps) when is_list(taps), do: Enum.map(taps, &Spec.text/1)
  defp names(taps), do: taps

  defp labels(labels, _type) when is_nil(labels) or is_binary(labels), do: {:ok, labels}

  defp labels(labels, type) when is_list(labels) do
    flat = List.flatten(labels)

    if Enum.all?(flat, &label?(&1, type)),
      do: {:ok, for(label <- flat, into: <<>>, do: packed(label, type))},
      else: {:error, mismatch("labels of #{allowed(type)}", shown(labels))}
  rescue
    # An improper list.
    _error in [FunctionClauseError, ArgumentError] -> {:error, mismatch("labels", shown(labels))}
  end

  defp labels(other, _type), do: {:error, mismatch("labels", shown(other))}

  defp label?(label, {:u, 16}), do: is_integer(label) and label in 0..65_535
  defp label?(label, {:f, 32}), do: is_number(label) and abs(label) <= 3.4028234e38

  defp allowed({:u, 16}), do: "0..65535"
  defp allowed({:f, 32}), do: "32 bits"

  defp packed(label, {:u, 16}), do: <<label::16-little>>
  # None: infinity, which no Erlang float is.
  defp packed(65_535, {:f, 32}), do: <<0, 0, 128, 127>>
  defp packed(label, {:f, 32}), do: <<label::float-32-little>>

  defp mismatch(expected, got) do
    details = %{what: "frames", expected: expected, got: got}
    %Error{kind: :mismatch, op: :forward, details: details}
  end

  defp wrap(ref, device) do
    with {:ok, {info, _notes}} <- Native.policy_info(ref) do
      own = %{ref: ref, device: device, spec: Spec.from_native(info.spec)}
      {:ok, struct!(__MODULE__, Map.merge(info, own))}
    end
  end

  defimpl Inspect do
    alias Sconce.Policy.Spec

    def inspect(policy, _opts) do
      model = Spec.summary(policy.spec, " #{policy.width}")
      "#Sconce.Policy<#{model} · #{count(policy.num_weights)} · #{policy.device}>"
    end

    defp count(n) when n >= 1_000_000, do: "#{Float.round(n / 1.0e6, 1)} M weights"
    defp count(n) when n >= 1_000, do: "#{Float.round(n / 1.0e3, 1)} k weights"
    defp count(n), do: "#{n} weights"
  end
end
