defmodule Sconce.Policy.Pass do
  @moduledoc false
  # The passes of `Sconce.Policy.forward/3` and `step/3`: their options, and frames and inputs as rows for the native side.

  alias Sconce.{Embedding, Error, Native, Options, Policy, Projection, Tensor}
  alias Sconce.Native.Call
  alias Sconce.Policy.{Head, OnCard, Spec, Tensors}

  @forward [
    batch: [type: :pos_integer, default: 1, doc: "Number of games, if the frames are one binary."],
    labels: [
      type: :any,
      default: nil,
      doc:
        "`[b, t, num_labels]`, the actions that autoregressive heads condition on: lists of integers or " <>
          "a binary of 16-bit integers, little-endian. If a head chooses numbers, lists of numbers or a " <>
          "binary of 32-bit floats."
    ],
    queue: [
      type: :any,
      default: nil,
      doc:
        "`[b, t, queue_depth, num_labels]`, the latest inputs before each frame, newest first, in the form " <>
          "of `labels`. 65535 means no input (infinity in a binary of floats). `nil` takes the previous " <>
          "actions of the frames."
    ],
    frame_delay: [
      type: {:or, [:non_neg_integer, nil]},
      max: 10_000,
      default: nil,
      doc:
        "Frame delay, for the delay id. `nil` is the delay of the training, or 0; a policy that was trained " <>
          "with several delays needs a number."
    ],
    state: [
      type: :any,
      default: nil,
      doc:
        "State that an earlier call returned, a binary or a tensor; `nil` at the start of games."
    ],
    return_sequences: [
      type: :boolean,
      default: true,
      doc: "Whether to return logits of every frame, or only of the last frame of each game."
    ],
    taps: [
      type: {:or, [:boolean, {:list, :any}]},
      default: false,
      doc: "Names of the activations to return; `true` for all of them."
    ],
    project_out: [
      type: :any,
      default: nil,
      doc:
        "One or several vectors of `trunk_width` numbers. Their span is removed from the trunk vectors " <>
          "before the heads read them. Lists of numbers, a binary of 32-bit floats, or an Nx tensor."
    ],
    as: Tensors.option()
  ]

  @doc "Options of a pass."
  @spec options() :: keyword
  def options, do: @forward

  @doc "Computes windows of frames, see `Sconce.Policy.forward/3`. The options are validated."
  @spec forward(Policy.t(), term, keyword) :: {:ok, Policy.output()} | {:error, Error.t()}
  def forward(policy, frames, options) do
    sequences? = options[:return_sequences]

    with {:ok, frames, options, form} <- Tensors.read(frames, :windows, options, policy),
         run = &run(policy, {form, sequences?}, &1, {&2, &3, &4}),
         {:ok, out} <- pass(policy, frames, options, run),
         do: {:ok, Tensors.write(out, form, sequences?)}
  end

  defp run(policy, {form, sequences?}, {:card, _tensor} = frames, {{batch, time}, _, _} = pass) do
    lead = Tensors.lead({batch, time, policy.num_logits}, form.axes, sequences?)
    OnCard.run(policy, frames, lead, pass)
  end

  defp run(policy, _form, rows, {shape, given, look}),
    do: Call.run(&Native.policy_forward(policy.ref, &1, rows, shape, given, look))

  @doc "Computes a pass by `run`, a function of rows, shape, optional inputs, and requested outputs."
  @spec pass(
          Policy.t(),
          [[term]] | binary | Tensor.t(),
          keyword,
          (binary, tuple, tuple, map -> {:ok, tuple} | {:error, Error.t()})
        ) ::
          {:ok, Policy.output()} | {:error, Error.t()}
  def pass(policy, frames, options, run) do
    with {:ok, rows, batch, time} <- rows(policy, frames, options[:batch]),
         {:ok, given} <- given(policy, options, {batch, time}),
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

  @doc "Computes one more frame of each game, see `Sconce.Policy.step/3`."
  @spec step(Policy.t(), term, keyword) :: {:ok, Policy.output()} | {:error, Error.t()}
  def step(policy, frames, opts) do
    # The logits of all frames are requested, so that a second frame of a game can be detected.
    options = opts |> Keyword.replace(:return_sequences, true) |> Options.validate!(@forward)

    with {:ok, frames, options, form} <- Tensors.read(frames, :frames, options, policy),
         {:ok, out} <-
           pass(policy, frames, options, &run(policy, {form, false}, &1, {&2, &3, &4})),
         {:ok, out} <- last_frame(out),
         do: {:ok, Tensors.write(out, form, false)}
  end

  defp last_frame(%{shape: {b, 1, n}} = out), do: {:ok, %{out | shape: {b, n}}}
  defp last_frame(_out), do: {:error, mismatch("one frame of each game", "more frames")}

  defp rows(%{raw_width: width}, %Tensor{shape: {batch, time, width}, data: rows}, _batch),
    do: {:ok, rows, batch, time}

  defp rows(policy, %Tensor{shape: {_, _, width}}, _batch) do
    [expected, got] = for n <- [policy.raw_width, width], do: "rows of #{n} numbers"
    {:error, mismatch(expected, got)}
  end

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
      _unlike -> {:error, mismatch("games of the same length", "games of different lengths")}
    end
  end

  defp rows(_policy, other, _batch),
    do: {:error, mismatch("lists of frames, a binary or a tensor", shown(other))}

  # The length of a proper list, or nil.
  defp size(list) when length(list) >= 0, do: length(list)
  defp size(_other), do: nil

  @doc "A term in an error."
  @spec shown(term) :: String.t()
  def shown(term), do: inspect(term, limit: 5, printable_limit: 80)

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

  defp given(policy, options, {batch, time}) do
    type = Head.type(policy.spec.heads)
    n = policy.num_labels

    with {:ok, labels} <- labels(options[:labels], type, "labels", {batch, time, n}),
         {:ok, queue} <- labels(options[:queue], type, "queue", queue(policy, batch, time, n)),
         {:ok, state} <- state(options[:state]),
         {:ok, project_out} <- Projection.pack(options[:project_out]),
         do: {:ok, {labels, queue, state, project_out}}
  end

  defp queue(%{spec: %{embedding: {_kind, options}}}, batch, time, n) when is_list(options),
    do: {batch, time, options[:queue_depth] || 1, n}

  defp queue(_vector, batch, time, n), do: {batch, time, 1, n}

  defp state(state) when is_nil(state) or is_binary(state), do: {:ok, state}

  defp state(other),
    do: Options.argument!("option :state", other, "a binary, a tensor or nil")

  defp labels(%Tensor{} = labels, type, what, shape),
    do: Tensors.labels(labels, type, shape, what)

  defp labels(labels, type, _what, _shape), do: labels(labels, type)

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
    # The list is improper.
    _error in [FunctionClauseError, ArgumentError] -> {:error, mismatch("labels", shown(labels))}
  end

  defp labels(other, _type), do: {:error, mismatch("labels", shown(other))}

  defp label?(label, {:u, 16}), do: is_integer(label) and label in 0..65_535
  defp label?(label, {:f, 32}), do: is_number(label) and abs(label) <= 3.4028234e38

  defp allowed({:u, 16}), do: "0..65535"
  defp allowed({:f, 32}), do: "32 bits"

  defp packed(label, {:u, 16}), do: <<label::16-little>>
  # "No input" is packed as infinity, which no Erlang float can be.
  defp packed(65_535, {:f, 32}), do: <<0, 0, 128, 127>>
  defp packed(label, {:f, 32}), do: <<label::float-32-little>>

  @doc "The error of frames of another form."
  @spec mismatch(String.t(), String.t()) :: Error.t()
  def mismatch(expected, got) do
    details = %{what: "frames", expected: expected, got: got}
    %Error{kind: :mismatch, op: :forward, details: details}
  end
end
