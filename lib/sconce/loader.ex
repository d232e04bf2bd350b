defmodule Sconce.Loader do
  alias Sconce.{Corpus, Error, Native, Options, Tensor}
  alias Sconce.Corpus.Filters
  alias Sconce.Native.Call
  alias Sconce.Policy.Spec
  alias Sconce.Trainer.{Meant, Table}

  # Sampling options, shared with training.
  @sampling Table.schema(
              ~w(sampling weights balance action_oversample oversample_column loss_on characters players stages
                            min_frames max_frames min_damage_dealt min_damage_taken humans unique min_quality
                            dual_port mirror noise noise_scale previous_dropout frame_delay frame_delay_max
                            neutral_weight transition_weight prefetch loader_threads loader_deadline_ms)a
            )
            |> Keyword.update!(:prefetch, fn row ->
              doc =
                row[:doc] <>
                  " With `:auto` the number follows the waits of the stream, see below."

              Keyword.merge(row, type: {:or, [:non_neg_integer, :auto]}, doc: doc)
            end)

  @stream [
            batch_size: [
              type: :pos_integer,
              default: 64,
              max: 1_048_576,
              doc: "Windows in a batch."
            ],
            window_size: [
              type: :pos_integer,
              default: 60,
              max: 1_048_576,
              doc: "Frames in a window."
            ],
            stride: [
              type: :pos_integer,
              default: 30,
              max: 1_000_000,
              doc: "Frames between the starts of neighbouring windows."
            ],
            epochs: [
              type: {:or, [:pos_integer, :infinity]},
              default: 1,
              max: 1_000_000,
              doc: "Passes over all windows, or the same number of draws."
            ],
            start: [
              type: :non_neg_integer,
              default: 0,
              max: 0xFFFF_FFFF_FFFF,
              doc: "First step, to continue an earlier stream."
            ],
            seed: [type: :non_neg_integer, default: 0, doc: "Seed of all randomness."],
            embedding: [
              type: :any,
              default: nil,
              doc: "Embedding, as in `Sconce.Policy.Spec`; `nil` is that of the corpus."
            ],
            queue_depth: [
              type: :non_neg_integer,
              default: 0,
              max: 256,
              doc: "Number of latest inputs beside each state, the newest first."
            ],
            burn_in: [
              type: :non_neg_integer,
              default: 0,
              max: 65_535,
              doc: "Frames at the start of a window that have the weight 0."
            ],
            max_bytes: [
              type: :pos_integer,
              default: 1_073_741_824,
              doc: "Largest size of prefetched batches; one batch is always prefetched."
            ],
            as: [
              type: {:in, [:auto, :binaries, :nx]},
              default: :auto,
              doc: "Nx tensors or maps of binaries; `:auto` is tensors if Nx is loaded."
            ]
          ] ++ @sampling

  @most_prefetch 4_096

  @moduledoc """
  Batches of a corpus, for apps that train without `Sconce.Trainer`. For `Axon.Loop` see `Sconce.Nx.batches/2`.

  Native threads draw windows, embed and augment them, and prefetch a bounded number of batches for a `Stream`. A batch
  depends only on the options, the seed and its step. A stream draws from every game, so a run with the same options
  learns from the same batches if it holds back no game (`val_split: 0`, or a `:validation` corpus).

      iex> dir = Path.join(System.tmp_dir!(), "sconce-loader-doctest")
      iex> games = for _game <- 1..3, do: {for(t <- 1..40, do: t / 40), for(t <- 1..40, do: rem(t, 2))}
      iex> {:ok, corpus} = Sconce.Corpus.build({:vector, 1}, games, into: dir, heads: [go: {:bernoulli, 1}])
      iex> stream = Sconce.Loader.stream(corpus, batch_size: 4, window_size: 10, stride: 10, as: :binaries)
      iex> [first, _second] = Enum.to_list(stream)
      iex> {first.step, first.states.shape, first.states.type, byte_size(first.states.data)}
      {0, {4, 10, 1}, {:f, 32}, 160}
      iex> first.actions.shape
      {4, 10, 1}
      iex> stream |> Stream.map(& &1.step) |> Enum.take(1)
      [0]
      iex> File.rm_rf!(dir) != []
      true

  ## A batch

  A batch is a map of `b` windows of `w` frames:

  | key | content | shape, type |
  |---|---|---|
  | `step` | index of the batch, counted from 0 over all epochs | |
  | `states` | embedded frames | `{b, w, continuous}` f32 |
  | `ids` | rows in the trained tables of the embedding | `{b, w, ids}` u32 |
  | `previous` | labels of the action that led to a frame, or of the latest input for an embedding with a queue; 65535, or infinity in f32, if there is no such action | `{b, w, labels}` as `actions` |
  | `queue` | labels of the latest inputs before the action to learn | `{b, w, queue_depth, labels}` as `actions` |
  | `actions` | labels to learn, one column for each class, bit and real value, in the order of the heads | `{b, w, labels}` u16, or f32 if a head chooses real values |
  | `frame_weights` | weights of the frames in the loss | `{b, w}` f32 |
  | `flow` | statistics of the loader, see below | |

  A tensor is an `Nx.Tensor`, or a map of `data` (a binary, little-endian and row-major), `shape` and `type`. An empty
  tensor (`ids` of vectors, `queue` at the depth 0) is always such a map, because Nx has no empty tensors. The binaries
  refer to the loader's memory without a copy; each binary keeps its whole batch in memory.

  ## Flow

  `flow` has the `batches`, `rows` and `bytes` taken so far; the `ready` batches and the `dropped` ones (always 0); the
  `seconds` from the start to the last batch, and `data_wait_seconds`, the part of them spent waiting for a batch;
  `room_wait_seconds` and `making_seconds`, in which the threads waited for a free slot or made batches;
  `rows_per_second` and `bytes_per_second`; `prefetch` and `threads` in use (`:max_bytes` may lower `prefetch`). The
  report of `Sconce.Trainer` has the same keys in `loader`. `stream` is a reference to the running stream, for `prefetch/2`.

  ## The number of prefetched batches

  `prefetch/2` changes it while a stream runs. With `prefetch: :auto` it follows the stream itself, from 1 to 16: it begins
  at 2, or at the number of threads, and looks at each 8 batches. It grows by one if the stream waited for two of them
  and memory is not short, and falls by three tenths if a batch lay unused after each of the last 64 and memory is short.
  Memory is short if it holds fewer than two further sets of these batches. It rests for 8 batches after a move. Batches
  and their order do not depend on it.

  ## Ends

  The threads end when the stream is done or halted (`Enum.take/2`), when it raises, and when its process dies. Each
  enumeration starts its own threads: other processes can run the same stream, even concurrently.

  A stream raises `Sconce.Error`: of kind `:corrupt` or `:not_found` for a truncated or deleted file, which the error
  names; of kind `:out_of_memory` for a batch of more than 2 GiB; of kind `:deadline` for a late batch; of kind `:panic`
  for a bug.
  """

  @type corpus :: Corpus.t()

  @typedoc "An `Nx.Tensor`, or its bytes with shape and type."
  @type tensor :: struct | %{data: binary, shape: tuple, type: {:f | :u, 16 | 32}}

  @typedoc "See `Sconce.Loader`."
  @type batch :: %{
          step: non_neg_integer,
          states: tensor,
          ids: tensor,
          previous: tensor,
          queue: tensor,
          actions: tensor,
          frame_weights: tensor,
          flow: map
        }

  @doc """
  Returns the batches of a corpus, given as a struct or by its folder, as a stream of `t:batch/0`.

  Invalid options, and options without an effect beside the others, raise `ArgumentError` here; other errors raise when the stream runs.

  #{Options.docs(@stream)}

      iex> dir = Path.join(System.tmp_dir!(), "sconce-stream-" <> System.pid())
      iex> game = {List.duplicate(0.5, 50), List.duplicate(1, 50)}
      iex> {:ok, corpus} = Sconce.Corpus.build({:vector, 1}, [game], into: dir, heads: [go: {:bernoulli, 1}])
      iex> stream = Sconce.Loader.stream(corpus, batch_size: 2, window_size: 10, stride: 10, as: :binaries)
      iex> for batch <- stream, do: {batch.step, batch.states.shape}
      [{0, {2, 10, 1}}, {1, {2, 10, 1}}]
      iex> File.rm_rf!(dir) != []
      true
  """
  @spec stream(corpus | Path.t(), keyword) :: Enumerable.t()
  def stream(corpus, opts \\ []) do
    opts = validate!(opts)
    tensor = tensor(opts[:as])
    options = native(opts)

    Stream.resource(
      fn -> open!(corpus, options, opts[:epochs]) end,
      fn
        %{left: 0} = state -> {:halt, state}
        state -> {[next!(state.loader, tensor)], %{state | left: less(state.left)}}
      end,
      fn %{loader: loader} -> Native.loader_close(loader) end
    )
  end

  @doc """
  Returns the size of a stream with these options: `windows` and `steps_per_epoch` of an epoch, `batch_bytes`,
  `short_views`, the number of views that are left out because they are shorter than a window, and `left_out`, the
  numbers of views that filters such as `:stages` leave out, by reason.

      iex> dir = Path.join(System.tmp_dir!(), "sconce-loader-info-" <> System.pid())
      iex> game = {List.duplicate(0.5, 50), List.duplicate(1, 50)}
      iex> {:ok, corpus} = Sconce.Corpus.build({:vector, 1}, [game], into: dir, heads: [go: {:bernoulli, 1}])
      iex> {:ok, info} = Sconce.Loader.info(corpus, batch_size: 2, window_size: 10, stride: 10)
      iex> {info.windows, info.steps_per_epoch}
      {4, 2}
      iex> File.rm_rf!(dir) != []
      true
  """
  @spec info(corpus | Path.t(), keyword) :: {:ok, map} | {:error, Error.t()}
  def info(corpus, opts \\ []) do
    options = opts |> validate!() |> native()

    with {:ok, %Corpus{handle: handle}} <- corpus(corpus),
         do: Call.in_background(&Native.loader_info(handle, &1, options))
  end

  @doc """
  Changes how many batches a running stream prefetches, and returns the number, which `:max_bytes` may have lowered.

  The stream is given by one of its batches. Batches that are ready stay; the number of threads does not change. A number of
  0 or above 4,096 raises `ArgumentError`. The error is of kind `:not_found` for a stream that has ended, `:mismatch` for
  one with `prefetch: 0`, and `:out_of_memory` if the batches do not fit.

      iex> dir = Path.join(System.tmp_dir!(), "sconce-prefetch-" <> System.pid())
      iex> game = {List.duplicate(0.5, 50), List.duplicate(1, 50)}
      iex> {:ok, corpus} = Sconce.Corpus.build({:vector, 1}, [game], into: dir, heads: [go: {:bernoulli, 1}])
      iex> stream = Sconce.Loader.stream(corpus, batch_size: 1, window_size: 10, stride: 10, as: :binaries)
      iex> for batch <- stream do
      ...>   if batch.step == 0, do: {:ok, 5} = Sconce.Loader.prefetch(batch, 5)
      ...>   batch.flow.prefetch
      ...> end
      [2, 5, 5, 5]
      iex> File.rm_rf!(dir) != []
      true
  """
  @spec prefetch(batch, pos_integer) :: {:ok, pos_integer} | {:error, Error.t()}
  def prefetch(%{flow: %{stream: stream}}, depth)
      when is_reference(stream) and depth in 1..@most_prefetch,
      do: Native.loader_prefetch(stream, depth)

  def prefetch(%{flow: %{stream: stream}}, depth) when is_reference(stream),
    do: Options.argument!("depth", depth, "1 to #{@most_prefetch} batches")

  def prefetch(batch, _depth), do: Options.argument!("batch", batch, "a batch of a stream")

  defp validate!(opts) do
    opts = Options.validate!(opts, @stream)
    Meant.check!(opts, @stream)
    opts
  end

  @doc false
  # Returns the schema of the options of a stream.
  def schema, do: @stream

  @doc false
  # Converts the sampling options to their native form; missing options stay missing.
  def native_sampling(options) do
    options
    |> Map.replace_lazy(:weights, &(&1 || []))
    |> Map.replace_lazy(:balance, &(&1 && to_string(&1)))
    |> Map.replace_lazy(:oversample_column, &(&1 && to_string(&1)))
    |> Filters.native()
  end

  defp native(opts) do
    options = opts |> Map.new() |> native_sampling()

    sampler =
      Map.take(
        options,
        ~w(stride sampling weights balance action_oversample mirror noise noise_scale
                           previous_dropout frame_delay_max seed oversample_column loss_on)a
      )

    options
    |> Map.take(~w(batch_size start burn_in frame_delay queue_depth neutral_weight
                   transition_weight)a)
    |> Map.merge(%{
      filter: Map.take(options, Filters.names()),
      sampler: Map.put(sampler, :window, options.window_size),
      loader:
        Map.merge(depth(options), %{
          threads: options.loader_threads,
          deadline_ms: options.loader_deadline_ms,
          max_bytes: options.max_bytes
        }),
      embedding: embedding(options.embedding)
    })
  end

  defp depth(%{prefetch: :auto, loader_threads: threads}),
    do: %{prefetch: max(threads, 2), auto: true}

  defp depth(%{prefetch: depth}), do: %{prefetch: depth, auto: false}

  defp embedding(nil), do: nil
  defp embedding(given), do: Spec.to_native(Spec.new(embedding: given)).embedding

  defp open!(corpus, options, epochs) do
    with {:ok, %Corpus{handle: handle}} <- corpus(corpus),
         {:ok, {loader, info}} <- Call.in_background(&Native.loader_open(handle, &1, options)) do
      %{loader: loader, left: steps(epochs, info.steps_per_epoch, options.start)}
    else
      {:error, error} -> raise error
    end
  end

  defp corpus(%Corpus{} = corpus), do: {:ok, corpus}
  defp corpus(dir), do: Corpus.open(dir)

  defp steps(:infinity, _steps, _start), do: :infinity
  defp steps(epochs, steps, start), do: max(epochs * steps - start, 0)

  defp less(:infinity), do: :infinity
  defp less(left), do: left - 1

  defp next!(loader, tensor) do
    case Call.run(&Native.loader_next(loader, &1)) do
      {:ok, {step, shape, words?, numbers, flow}} ->
        label = if words?, do: {{:u, 16}, 2}, else: {{:f, 32}, 4}
        batch(step, shape, label, numbers, Map.put(flow, :stream, loader), tensor)

      {:error, error} ->
        raise error
    end
  end

  defp batch(step, {b, w}, {label, bytes}, numbers, flow, tensor) do
    {states, ids, previous, queue, labels, weights} = numbers
    rows = b * w
    width = fn binary, bytes -> div(byte_size(binary), bytes * rows) end
    wide = fn binary, type, bytes -> tensor.(binary, type, {b, w, width.(binary, bytes)}) end
    labels_width = width.(labels, bytes)
    depth = div(width.(queue, bytes), labels_width)

    %{
      step: step,
      states: wide.(states, {:f, 32}, 4),
      ids: wide.(ids, {:u, 32}, 4),
      previous: wide.(previous, label, bytes),
      queue: tensor.(queue, label, {b, w, depth, labels_width}),
      actions: wide.(labels, label, bytes),
      frame_weights: tensor.(weights, {:f, 32}, {b, w}),
      flow: flow
    }
  end

  defp tensor(:auto), do: if(Tensor.nx?(), do: &nx/3, else: &plain/3)
  defp tensor(:binaries), do: &plain/3

  defp tensor(:nx) do
    Tensor.nx!("option :as")
    &nx/3
  end

  defp plain(data, type, shape), do: %{data: data, type: type, shape: shape}

  # Nx has no empty tensors, so an empty tensor stays a map.
  defp nx(<<>>, type, shape), do: plain(<<>>, type, shape)
  defp nx(data, type, shape), do: Tensor.from_binary(data, type, shape)
end
