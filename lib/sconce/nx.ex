defmodule Sconce.Nx do
  alias Sconce.{Corpus, Error, Loader, Options, Policy, Serving, Tensor}
  alias Sconce.Policy.{Head, Spec}

  @serving [
    window_size: [
      type: {:or, [:pos_integer, nil]},
      max: 16_384,
      default: nil,
      doc: "Frames of an input, which is then a window; `nil` is a single frame."
    ],
    choices: [
      type: :boolean,
      default: false,
      doc: "Whether to return the most likely choice of each head instead of its logits."
    ]
  ]

  @moduledoc """
  Policies and corpora for apps with Nx: an `Nx.Serving` over a policy, and batches for `Axon.Loop`.

  Nx is no dependency of Sconce. These functions need an app that has it, and raise `ArgumentError` without it.
  Tensors of other functions are described where they are: `Sconce.Policy.forward/3` ("Tensors"),
  `Sconce.Embedding.embed/3`, `Sconce.Session.act_many/2`, `Sconce.Policy.weights/2` and
  `Sconce.Policy.put_weights/2`, `Sconce.Loader.stream/2`, `Sconce.Env.step/2`.

  Sconce computes on its own device and threads, with no compilation by Nx. Tensors of `Nx.BinaryBackend` cross without
  a copy of their bytes on the side of Elixir; tensors of other backends are copied through memory of the CPU. The frames
  and logits of `Sconce.Policy.forward/3` and `step/3` stay on a card if they are tensors of EXLA there (`as: :card`).
  """

  @doc """
  Returns an `Nx.Serving` over a policy, or over a `Sconce.Serving`, which then limits its queue.

  An input is a tensor of raw rows, `{b, raw_width}`, or with `:window_size` `{b, window_size, raw_width}`. Without the
  axis of the batch it is one input, and the answer has no such axis, either. An `Nx.Batch` of such tensors is taken
  unchanged. Other shapes raise `ArgumentError` in the process that calls.

  The answer is a map by head, of f32 logits `{b, n}` for the last frame, and `value` of `{b, 1}` with a value head. With
  `choices: true` it has classes u16 `{b}`, bits u16 `{b, n}` and numbers f32 `{b, n}`, as a session with
  `deterministic: true` chooses them. Each input starts from a zero state, so a policy with memory needs windows. A
  policy with autoregressive heads has no serving.

  #{Options.docs(@serving)}

  ```elixir
  {:ok, policy} = Sconce.Policy.load("best.safetensors")
  serving = Sconce.Nx.serving(policy, window_size: 60)
  Nx.Serving.run(serving, Nx.broadcast(0.5, {8, 60, policy.raw_width}))

  children = [{Nx.Serving, serving: serving, name: MyApp.Policy, batch_size: 64, batch_timeout: 2}]
  Nx.Serving.batched_run(MyApp.Policy, window)
  ```

  A batch waits for `:batch_timeout`, and no request has a deadline. A `Sconce.Serving` starts at once and keeps the
  memory of sessions: use it to play.
  """
  @spec serving(Policy.t() | Serving.serving(), keyword) :: struct
  def serving(policy, opts \\ []) do
    options = Options.validate!(opts, @serving)
    loaded!("serving", Nx.Serving)
    {spec, width, forward} = source!(policy)

    spec.heads_kind == :independent ||
      Options.argument!("policy", policy, "one with independent heads")

    row =
      if options[:window_size],
        do: {options[:window_size], width},
        else: {width}

    heads = if options[:choices], do: choices!(spec), else: logits(spec)

    Nx.Serving
    |> apply(:new, [fn _defn_options -> &run(&1, row, heads, forward) end])
    |> then(&apply(Nx.Serving, :client_preprocessing, [&1, fn input -> batch!(input, row) end]))
    |> then(
      &apply(Nx.Serving, :client_postprocessing, [&1, fn out, info -> whole(out, info) end])
    )
  end

  # The Spec, the width of a raw row, and a function that computes the logits of frames.
  defp source!(%Policy{spec: %Spec{} = spec} = policy),
    do: {spec, policy.raw_width, &Policy.forward(policy, &1, &2)}

  defp source!(%Policy{} = other), do: Options.argument!("policy", other, "a policy")

  defp source!(serving) do
    case Serving.info(serving) do
      {:ok, %{policy: policy}} ->
        {policy.spec, policy.raw_width, &Serving.forward(serving, &1, nil, &2)}

      {:error, error} ->
        raise error
    end
  end

  # Entries of the answer: name, offset and number of logits, and a function of them.
  defp logits(spec) do
    {entries, end_} = entries(spec, fn _kind -> &Function.identity/1 end)

    if spec.value_head,
      do: entries ++ [{:value, end_, 1, &Function.identity/1}],
      else: entries
  end

  defp choices!(spec), do: spec |> entries(&choice!/1) |> elem(0)

  defp entries(%{heads: heads}, of) do
    Enum.map_reduce(heads, 0, fn %{name: name, kind: kind}, at ->
      n = Head.logits(kind)
      {{name, at, n, of.(kind)}, at + n}
    end)
  end

  defp choice!({:categorical, _n}),
    do: &(Nx |> apply(:argmax, [&1, [axis: 1]]) |> as_type({:u, 16}))

  defp choice!({:bernoulli, _n}), do: &(Nx |> apply(:greater, [&1, 0]) |> as_type({:u, 16}))

  defp choice!({:gaussian, n, low, high}) do
    fn logits ->
      # The squashed mean, in the range of the head.
      unit = Nx |> apply(:tanh, [slice(logits, 0, n, 1)]) |> then(&apply(Nx, :add, [&1, 1.0]))
      apply(Nx, :add, [apply(Nx, :multiply, [unit, (high - low) / 2]), low])
    end
  end

  defp choice!(kind),
    do: Options.argument!("option :choices", kind, "heads of bits, classes or numbers")

  defp as_type(tensor, type), do: apply(Nx, :as_type, [tensor, type])
  defp slice(tensor, at, n, axis), do: apply(Nx, :slice_along_axis, [tensor, at, n, [axis: axis]])

  # Checks an input where its caller is. The second element says whether the input has the axis of a batch.
  defp batch!(%{__struct__: Nx.Tensor, shape: shape} = tensor, row) do
    cond do
      shape == row ->
        {apply(Nx.Batch, :stack, [[tensor]]), :one}

      tuple_size(shape) > 0 and Tuple.delete_at(shape, 0) == row ->
        {apply(Nx.Batch, :concatenate, [[tensor]]), :many}

      true ->
        wrong!(shape, row)
    end
  end

  defp batch!(%{__struct__: Nx.Batch, template: %{shape: row}} = batch, row), do: {batch, :many}
  defp batch!(%{__struct__: Nx.Batch, template: %{shape: shape}}, row), do: wrong!(shape, row)
  defp batch!(other, _row), do: Options.argument!("input", other, "a tensor or an Nx.Batch")

  defp wrong!(shape, row) do
    axes = row |> Tuple.to_list() |> Enum.map_join(", ", &to_string/1)

    raise ArgumentError,
          "input: expected the shape {b, #{axes}} or {#{axes}}, got: #{inspect(shape)}"
  end

  defp run(batch, row, heads, forward) do
    # Concatenates the inputs of the batch, whatever compiler is the default.
    frames =
      apply(Nx.Defn, :jit_apply, [
        &Function.identity/1,
        [batch],
        [compiler: Nx.Defn.Evaluator]
      ])

    opts = [as: :nx, return_sequences: false]

    case forward.(windows(frames, row), opts) do
      {:ok, %{logits: logits}} ->
        Map.new(heads, fn {name, at, n, of} -> {name, of.(slice(logits, at, n, 1))} end)

      {:error, error} ->
        raise error
    end
  end

  # A batch of single frames is one of windows of one frame.
  defp windows(frames, {width}),
    do: apply(Nx, :reshape, [frames, {elem(frames.shape, 0), 1, width}])

  defp windows(frames, _window), do: frames

  defp whole({out, _metadata}, :many), do: out

  defp whole({out, _metadata}, :one),
    do: Map.new(out, fn {name, tensor} -> {name, apply(Nx, :squeeze, [tensor, [axes: [0]]])} end)

  @doc """
  Returns the batches of a corpus as a stream of `{inputs, targets}`, as `Axon.Loop.run/4` takes them.

    * `inputs` are the embedded frames, f32 `{b, w, features}`. If the embedding has trained tables, `inputs` is
      `%{"states" => frames, "ids" => ids}` with their rows, u32 `{b, w, ids}`: the names of two inputs of the model.
    * `targets` is `%{actions: actions, frame_weights: weights}`. The actions to learn are a map by head: classes u16
      `{b, w}`, bits u16 `{b, w, n}`, numbers f32 `{b, w, n}`; all are f32 if one head has numbers. The weights of the
      frames are f32 `{b, w}`.

  The options are those of `Sconce.Loader.stream/2` without `:as`, and so are errors and the end of its threads. An
  `Axon.Loop` runs the stream once for each epoch, so leave `:epochs` at 1; to draw other windows in each epoch, run the
  loop for one epoch with another `:seed` each time.

  ```elixir
  batches = Sconce.Nx.batches("corpus", batch_size: 64, window_size: 60)

  model =
    Axon.input("states", shape: {nil, nil, 288})
    |> Axon.dense(256, activation: :relu)
    |> Axon.dense(8)

  loss = fn targets, logits ->
    bits = Nx.as_type(targets.actions.buttons, :f32)
    nats = Axon.Losses.binary_cross_entropy(bits, logits, from_logits: true, reduction: :none)
    Nx.weighted_mean(nats, targets.frame_weights)
  end

  model
  |> Axon.Loop.trainer(loss, Polaris.Optimizers.adam(learning_rate: 1.0e-3))
  |> Axon.Loop.run(batches, Axon.ModelState.empty(), epochs: 4)
  ```
  """
  @spec batches(Loader.corpus() | Path.t(), keyword) :: Enumerable.t()
  def batches(corpus, opts \\ []) do
    loaded!("batches", Nx)

    if Keyword.has_key?(Options.keyword!(opts), :as),
      do: raise(ArgumentError, "option :as: these batches are always tensors")

    corpus
    |> Loader.stream(opts ++ [as: :nx])
    |> Stream.transform(
      fn -> heads!(corpus) end,
      fn batch, heads -> {[pair(batch, heads)], heads} end,
      fn _heads -> :ok end
    )
  end

  defp heads!(corpus) do
    with {:ok, corpus} <- opened(corpus), {:ok, heads} <- Corpus.heads(corpus) do
      {heads, _labels} =
        Enum.map_reduce(heads, 0, fn {name, kind}, at ->
          n = Head.labels(kind)
          {{name, kind, at, n}, at + n}
        end)

      heads
    else
      {:error, %Error{} = error} -> raise error
    end
  end

  defp opened(%Corpus{} = corpus), do: {:ok, corpus}
  defp opened(dir), do: Corpus.open(dir)

  defp pair(batch, heads) do
    actions =
      Map.new(heads, fn {name, kind, at, n} ->
        {name, batch.actions |> slice(at, n, 2) |> class(kind)}
      end)

    {inputs(batch), %{actions: actions, frame_weights: batch.frame_weights}}
  end

  defp class(tensor, {:categorical, _n}), do: apply(Nx, :squeeze, [tensor, [axes: [2]]])
  defp class(tensor, _kind), do: tensor

  # Nx has no empty tensor: without tables the ids are a map.
  defp inputs(%{states: states, ids: %{__struct__: Nx.Tensor} = ids}),
    do: %{"states" => states, "ids" => ids}

  defp inputs(%{states: states}), do: states

  defp loaded!(function, module) do
    Tensor.nx!(function)

    Code.ensure_loaded?(module) ||
      raise ArgumentError, "#{function}: this Nx has no #{inspect(module)}"
  end
end
