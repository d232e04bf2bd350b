defmodule Sconce.LoaderTest do
  # Not async: the tests count the streams of the VM.
  use ExUnit.Case, async: false

  import Sconce.Test.Scratch
  import Sconce.Test.SomeNx, only: [with_nx: 1]

  alias Sconce.{Corpus, Error, Loader, Native, Trainer}
  alias Sconce.Native.Call
  alias Sconce.Test.Exphil

  doctest Sconce.Loader

  @heads [move: {:categorical, 50}]
  @small [batch_size: 4, window_size: 5, stride: 5, as: :binaries]

  setup do
    dir = tmp_dir!("loader")
    corpus = corpus!(Path.join(dir, "corpus"))
    # Streams of earlier tests have ended.
    assert ended?()
    {:ok, dir: dir, corpus: corpus}
  end

  # One number per frame: 1000 times the game plus the frame. Its label is the frame.
  defp corpus!(dir) do
    games = for g <- 0..3, do: {for(t <- 0..49, do: 1000 * g + t), Enum.to_list(0..49)}
    {:ok, corpus} = Corpus.build({:vector, 1}, games, into: dir, heads: @heads)
    corpus
  end

  defp ended?, do: eventually(fn -> Native.loader_count() == {:ok, {0, 0}} end)

  defp eventually(fun, tries \\ 400) do
    cond do
      fun.() -> true
      tries == 0 -> false
      true -> Process.sleep(10) && eventually(fun, tries - 1)
    end
  end

  defp numbers(%{data: data, type: {:f, 32}}), do: for(<<x::float-32-little <- data>>, do: x)
  defp numbers(%{data: data, type: {:u, 16}}), do: for(<<x::16-little <- data>>, do: x)

  describe "a stream" do
    test "yields each window of an epoch once, with its labels", %{corpus: corpus} do
      batches = corpus |> Loader.stream(@small) |> Enum.to_list()

      assert {:ok, %{steps_per_epoch: 9, windows: 36, short_views: 0}} =
               Loader.info(corpus, @small)

      assert Enum.map(batches, & &1.step) == Enum.to_list(0..8)

      seen =
        for batch <- batches,
            {window, labels} <-
              Enum.zip(
                Enum.chunk_every(numbers(batch.states), 5),
                Enum.chunk_every(numbers(batch.actions), 5)
              ) do
          assert Enum.map(window, &rem(trunc(&1), 1000)) == labels
          hd(window)
        end

      assert length(Enum.uniq(seen)) == 36
      [first | _] = batches
      assert %{shape: {4, 5, 1}, type: {:f, 32}} = first.states
      assert %{shape: {4, 5, 0}, type: {:u, 32}, data: <<>>} = first.ids
      assert %{shape: {4, 5}, type: {:f, 32}} = first.frame_weights
      assert %{shape: {4, 5, 0, 1}} = first.queue
      assert ended?()
    end

    test "is the same for any number of threads and from any step on", %{corpus: corpus} do
      all = fn opts ->
        for b <- Loader.stream(corpus, opts ++ @small), do: Map.delete(b, :flow)
      end

      opts = [epochs: 2, noise: 0.5, previous_dropout: 0.1, frame_delay_max: 3, queue_depth: 2]
      expected = all.(opts)
      assert [_ | _] = expected

      for more <- [[prefetch: 0], [prefetch: 1], [prefetch: 5, loader_threads: 3]],
          do: assert(all.(opts ++ more) == expected)

      assert all.(opts ++ [start: 3]) == Enum.drop(expected, 3)
      assert all.(opts ++ [start: 1000]) == []
      assert all.(opts ++ [seed: 1]) != expected
    end

    test "counts its batches and frames", %{corpus: corpus} do
      flow = corpus |> Loader.stream(@small) |> Enum.at(-1) |> Map.fetch!(:flow)
      assert %{batches: 9, rows: 180, dropped: 0, prefetch: 2, threads: 1} = flow
      assert flow.rows_per_second > 0 and flow.making_seconds > 0
      assert flow.bytes == 180 * (4 + 4 + 4 + 4)
    end

    test "prefetches no more than its limit for a slow consumer", %{corpus: corpus} do
      opts = [prefetch: 3, loader_threads: 2, epochs: :infinity] ++ @small

      for batch <- corpus |> Loader.stream(opts) |> Stream.take(6) do
        assert batch.flow.ready <= 3
        Process.sleep(20)
      end

      [flow] =
        for b <-
              corpus
              |> Loader.stream(opts)
              |> Stream.each(&slow/1)
              |> Stream.take(6)
              |> Stream.drop(5),
            do: b.flow

      assert flow.room_wait_seconds > flow.data_wait_seconds
      assert flow.ready <= 3
      # A limit in bytes reduces the prefetch, down to one batch.
      tight = [max_bytes: 1] ++ opts
      assert %{flow: %{prefetch: 1, threads: 1}} = corpus |> Loader.stream(tight) |> Enum.at(0)
      assert ended?()
    end

    test "prefetches more or fewer batches while it runs, and yields the same ones", %{
      corpus: corpus
    } do
      opts = [epochs: 3, noise: 0.5, loader_threads: 2] ++ @small
      expected = for b <- Loader.stream(corpus, opts), do: Map.delete(b, :flow)

      changed =
        for b <- Loader.stream(corpus, opts) do
          depth = rem(b.step, 5) + 1
          assert {:ok, ^depth} = Loader.prefetch(b, depth)
          {depth, b}
        end

      assert Enum.map(changed, &Map.delete(elem(&1, 1), :flow)) == expected
      # The next batch has the number that was set beside the one before it.
      for [{depth, _batch}, {_depth, batch}] <- Enum.chunk_every(changed, 2, 1, :discard),
          do: assert(batch.flow.prefetch == depth)

      followed = Enum.to_list(Loader.stream(corpus, [prefetch: :auto] ++ opts))
      assert Enum.map(followed, &Map.delete(&1, :flow)) == expected
      assert hd(followed).flow.prefetch == 2
      assert Enum.all?(followed, &(&1.flow.prefetch in 1..16))
      tight = [max_bytes: 1, prefetch: 3] ++ opts

      assert [{:ok, 1}] =
               corpus
               |> Loader.stream(tight)
               |> Stream.map(&Loader.prefetch(&1, 9))
               |> Enum.take(1)

      assert ended?()
    end

    test "that has ended or makes batches on request has no number to change", %{corpus: corpus} do
      [batch] = corpus |> Loader.stream(@small) |> Enum.take(1)
      assert {:error, %Error{kind: :not_found, op: :prefetch}} = Loader.prefetch(batch, 2)
      none = Loader.stream(corpus, [prefetch: 0] ++ @small)

      for batch <- Stream.take(none, 1),
          do: assert({:error, %Error{kind: :mismatch}} = Loader.prefetch(batch, 2))

      for depth <- [0, 4097, :auto],
          do: assert_raise(ArgumentError, ~r/^depth: /, fn -> Loader.prefetch(batch, depth) end)

      assert_raise ArgumentError, ~r/^batch: /, fn -> Loader.prefetch(%{}, 2) end
      assert ended?()
    end

    test "that is halted, or raises, ends its threads", %{corpus: corpus} do
      stream = Loader.stream(corpus, [epochs: :infinity] ++ @small)
      assert [_, _] = Enum.take(stream, 2)
      assert ended?()
      assert_raise RuntimeError, fn -> Enum.each(stream, fn _ -> raise "enough" end) end
      assert ended?()
      refute_received {:sconce, _ref, _answer}
    end

    test "ends with the process that runs it", %{corpus: corpus} do
      test = self()

      {pid, monitor} =
        spawn_monitor(fn ->
          corpus
          |> Loader.stream([epochs: :infinity] ++ @small)
          |> Enum.each(fn batch ->
            send(test, {:at, batch.step})
            if batch.step == 3, do: Process.sleep(:infinity)
          end)
        end)

      assert_receive {:at, 3}
      assert {:ok, {1, 1}} = Native.loader_count()
      Process.exit(pid, :kill)
      assert_receive {:DOWN, ^monitor, :process, ^pid, :killed}
      assert ended?()
    end

    test "runs twice at once, also in other processes", %{corpus: corpus} do
      stream = Loader.stream(corpus, @small)
      expected = for batch <- stream, do: batch.states

      together = for({a, b} <- Stream.zip(stream, stream), do: {a.states, b.states})

      assert together == Enum.zip(expected, expected)
      tasks = for _ <- 1..4, do: Task.async(fn -> for batch <- stream, do: batch.states end)
      assert Task.await_many(tasks) == List.duplicate(expected, 4)
      assert ended?()
    end

    test "keeps its batches after its end", %{corpus: corpus} do
      batches = corpus |> Loader.stream(@small) |> Enum.to_list()
      assert ended?()
      :erlang.garbage_collect()
      assert length(Enum.flat_map(batches, &numbers(&1.states))) == 180
    end

    test "yields tensors only if Nx is loaded", %{corpus: corpus} do
      refute Code.ensure_loaded?(Nx)

      assert_raise ArgumentError, ~r/:as: Nx is not loaded/, fn ->
        Loader.stream(corpus, as: :nx)
      end

      auto = Loader.stream(corpus, Keyword.put(@small, :as, :auto))
      assert %{states: %{data: _binary}} = Enum.at(auto, 0)
    end

    test "yields tensors of its bytes with Nx, and no empty tensor", %{corpus: corpus} do
      with_nx(fn ->
        for as <- [:nx, :auto] do
          batch = corpus |> Loader.stream(Keyword.put(@small, :as, as)) |> Enum.at(0)
          plain = corpus |> Loader.stream(@small) |> Enum.at(0)

          for key <- [:states, :actions, :previous, :frame_weights] do
            %{data: data, type: type, shape: shape} = plain[key]
            assert batch[key] == struct(Nx.Tensor, data: data, type: type, shape: shape)
          end

          for key <- [:ids, :queue], do: assert(batch[key] == plain[key])
        end
      end)

      refute Code.ensure_loaded?(Nx)
    end

    test "answers one request at a time", %{corpus: corpus} do
      sampler =
        %{window: 5, stride: 5, sampling: :shuffled, weights: [], action_oversample: 3.0}
        |> Map.merge(%{mirror: 0.0, noise: 1.0, noise_scale: 0.1, previous_dropout: 0.0})
        |> Map.merge(%{frame_delay_max: nil, seed: 0})

      # A batch large enough to take long.
      options = %{
        batch_size: 200_000,
        start: 0,
        burn_in: 0,
        frame_delay: 0,
        queue_depth: 50,
        neutral_weight: 1.0,
        transition_weight: 1.0,
        filter: %{},
        sampler: sampler,
        loader: %{prefetch: 0, threads: 1, deadline_ms: 60_000, max_bytes: 1},
        embedding: nil
      }

      {:ok, {loader, _info}} = Call.run(&Native.loader_open(corpus.handle, &1, options))
      first = make_ref()
      assert :ok = Native.loader_next(loader, first)
      assert {:error, %Error{kind: :busy}} = Native.loader_next(loader, make_ref())
      assert {:error, %Error{kind: :busy}} = Native.loader_next(loader, make_ref())
      assert_receive {:sconce, ^first, {:ok, {0, _shape, _words?, _numbers, _flow}}}, 60_000

      assert {:ok, {1, _shape, _words?, _numbers, _flow}} =
               Call.run(&Native.loader_next(loader, &1))

      refute_received {:sconce, _ref, _answer}
      :ok = Native.loader_close(loader)
      assert ended?()
    end
  end

  describe "an error" do
    test "in an option raises at once", %{corpus: corpus} do
      for {opts, sentence} <- [
            {[bacth_size: 3], ~r/unknown option :bacth_size, did you mean :batch_size/},
            {[sampling: :random], ~r/option :sampling: expected one of :shuffled/},
            {[noise: 1.5], ~r/option :noise/},
            {[characters: ["Foxx"]], ~r/no character "Foxx", did you mean "Fox"/},
            {[prefetch: 5000], ~r/option :prefetch/},
            {[start: 2 ** 48], ~r/option :start/},
            {[action_oversample: 0.5], ~r/option :action_oversample/},
            {[action_oversample: 2.0],
             ~r/:action_oversample has no effect with sampling: :shuffled/},
            {[loss_on: :last, burn_in: 3], ~r/:burn_in has no effect with loss_on: :last/},
            {[noise_scale: 0.5], ~r/:noise_scale has no effect with noise: 0.0/}
          ] do
        assert_raise ArgumentError, sentence, fn -> Loader.stream(corpus, opts) end
      end
    end

    test "in the games raises when the stream runs, with its kind", %{corpus: corpus, dir: dir} do
      kind = fn corpus, opts ->
        error = catch_error(corpus |> Loader.stream(opts ++ @small) |> Enum.to_list())
        assert %Error{op: op} = error
        assert op in [:stream, :open]
        error.kind
      end

      assert kind.(Path.join(dir, "none"), []) == :not_found
      assert kind.(corpus, window_size: 51) == :not_found
      assert kind.(corpus, mirror: 0.5) == :mismatch
      assert kind.(corpus, characters: ["Fox"]) == :not_found
      assert kind.(corpus, sampling: :balanced) == :mismatch
      assert kind.(corpus, sampling: :weighted) == :mismatch
      assert kind.(corpus, embedding: :melee) == :mismatch
      assert kind.(corpus, frame_delay: 3, frame_delay_max: 2) == :out_of_range
      assert kind.(corpus, sampling: :weighted, weights: [1, 1, 1, 1, 1]) == :mismatch
      assert kind.(corpus, batch_size: 1_000_000) == :out_of_range
      assert kind.(corpus, burn_in: 5) == :out_of_range
      wide = {List.duplicate(0.0, 600 * 5), [0, 1, 2, 3, 4]}
      into = Path.join(dir, "wide")
      {:ok, wide} = Corpus.build({:vector, 600}, [wide], into: into, heads: @heads)
      assert kind.(wide, batch_size: 200_000) == :out_of_memory
      assert {:error, %Error{kind: :not_found}} = Loader.info(corpus, window_size: 51)
      assert ended?()
    end

    test "in a file names the file, however late", %{dir: dir} do
      for {harm, kind} <- [{&cut/1, :corrupt}, {&File.rm!/1, :not_found}] do
        corpus = corpus!(Path.join(dir, to_string(kind)))
        {:ok, games} = Corpus.games(corpus)
        stream = Loader.stream(corpus, [epochs: :infinity] ++ @small)

        error =
          catch_error(
            Enum.each(stream, fn batch ->
              if batch.step == 2,
                do: for(game <- games, do: harm.(Path.join(corpus.dir, game.file)))
            end)
          )

        assert %Error{kind: ^kind} = error
        assert Exception.message(error) =~ Path.join(corpus.dir, "games")
      end

      assert ended?()
    end
  end

  test "a file truncated under a reader is an error, not a crash of the VM", %{
    dir: dir
  } do
    {frames, width} = {5000, 64}
    x = :binary.copy(<<0.5::float-32-little>>, frames * width)
    games = for label <- 0..3, do: {x, :binary.copy(<<label::16-little>>, frames)}
    into = Path.join(dir, "long")
    {:ok, corpus} = Corpus.build({:vector, width}, games, into: into, heads: @heads)
    {:ok, [game | _]} = Corpus.games(corpus)
    opts = [epochs: :infinity, prefetch: 4, loader_threads: 2] ++ @small

    cut_at_2 = fn batch ->
      if batch.step == 2, do: File.open!(Path.join(into, game.file), [:read, :write], &cut_to/1)
    end

    error = catch_error(corpus |> Loader.stream(opts) |> Enum.each(cut_at_2))
    assert %Error{kind: :corrupt} = error
    assert Exception.message(error) =~ "to 5000 bytes"
    assert {:error, %Error{kind: :corrupt}} = Corpus.recording(corpus, 0)
    assert ended?()
  end

  describe "sampling" do
    test "draws games by their weights, and a delay for each window", %{corpus: corpus} do
      {:ok, games} = Corpus.games(corpus)
      weights = for game <- games, do: if(game.source == "game 2", do: 1, else: 0)
      opts = [sampling: :weighted, weights: weights, frame_delay_max: 4] ++ @small

      for batch <- Loader.stream(corpus, opts),
          {x, label} <- Enum.zip(numbers(batch.states), numbers(batch.actions)) do
        assert x >= 2000 and x < 3000
        assert (label - (x - 2000)) in [0.0, 1.0, 2.0, 3.0, 4.0]
      end
    end

    test "is the same in a run, which reports its waiting times", %{corpus: corpus, dir: dir} do
      options =
        [corpus: corpus, backbone: :mlp, hidden_sizes: [8], head_hidden_size: 8] ++
          [batch_size: 4, window_size: 5, steps: 6, evaluate: false, dropout: 0.0]

      run = fn name, more ->
        {:ok, run} = Trainer.start_link([out: Path.join(dir, name)] ++ more ++ options)
        {:ok, report} = Trainer.await(run, 60_000)
        {report, File.read!(Path.join(report.out, "best.safetensors"))}
      end

      more = [noise: 0.5, sampling: :transitions, action_oversample: 2.0]
      {report, weights} = run.("a", more)
      assert %{batches: 6, rows: 120, dropped: 0, prefetch: 2, threads: 1} = report.loader
      assert report.loader.data_wait_seconds >= 0
      assert {%{loader: %{prefetch: 0}}, ^weights} = run.("b", [prefetch: 0] ++ more)
      {_report, other} = run.("c", [])
      assert other != weights
    end
  end

  describe "a corpus of ExPhil" do
    setup %{dir: dir} do
      row = fn g, t -> {[1.0 * g, t / 10, 0.5], [rem(t, 4), rem(t, 17), 8, 8, 8, rem(t, 5)]} end
      games = for g <- 1..4, do: {"game#{g}.slp", 1, for(t <- 0..29, do: row.(g, t))}
      {:ok, theirs: Exphil.write!(Path.join(dir, "theirs"), games)}
    end

    test "opens, streams and trains", %{theirs: theirs, dir: dir} do
      assert {:ok, corpus} = Corpus.open(theirs)
      assert %{schema: {:vector, 3}, games: 4, frames: 120, views: 4} = corpus.info
      assert {:ok, [%{source: "game1.slp", frames: 30, ports: [1]} | _]} = Corpus.games(corpus)

      assert {:ok, [{_row, [0, 0, 0, 0, 0, 0, 0, 0, 0, 8, 8, 8, 0]} | _]} =
               Corpus.recording(corpus, 0)

      for batch <- Loader.stream(corpus, @small),
          {[g, t, half], label} <-
            Enum.zip(
              Enum.chunk_every(numbers(batch.states), 3),
              Enum.chunk_every(numbers(batch.actions), 13)
            ) do
        t = round(10 * t)
        assert g in [1.0, 2.0, 3.0, 4.0] and half == 0.5
        assert Enum.take(label, 2) == [rem(t, 2), div(rem(t, 4), 2)]
        assert Enum.drop(label, 8) == [rem(t, 17), 8, 8, 8, rem(t, 5)]
      end

      {:ok, run} =
        Trainer.start_link(
          [corpus: corpus, out: Path.join(dir, "run"), backbone: :gru, hidden_size: 8] ++
            [batch_size: 4, window_size: 5, steps: 3, val_split: 0.25]
        )

      assert {:ok, %{steps: 3, train: %{games: 3}, policy: %{frames: frames}}} =
               Trainer.await(run, 60_000)

      assert frames in [29, 30]
    end

    test "that is inconsistent is refused, and is never written to", %{theirs: theirs} do
      refused = fn -> with {:error, %Error{} = error} <- Corpus.open(theirs), do: error end
      into = Corpus.build({:vector, 3}, [], into: theirs, heads: @heads)
      assert {:error, %Error{kind: :mismatch}} = into
      manifest = Path.join(theirs, "manifest.jsonl")
      File.write!(manifest, ~s({"path":"x","start":119,"frames":2}\n))
      assert %{kind: :corrupt, op: :open} = error = refused.()
      assert Exception.message(error) =~ "manifest.jsonl: line 1: 2 frames from 119 on of 120"
      cut(Path.join(theirs, "labels.bin"))
      assert Exception.message(refused.()) =~ "labels.bin: "
      File.rm!(Path.join(theirs, "labels.bin"))
      assert %{kind: :not_found} = refused.()
    end
  end

  defp cut_to(file) do
    {:ok, 5000} = :file.position(file, 5000)
    :ok = :file.truncate(file)
  end

  defp slow(_batch), do: Process.sleep(20)

  defp cut(path) do
    %{size: size} = File.stat!(path)
    {:ok, file} = :file.open(path, [:read, :write, :raw])
    {:ok, _at} = :file.position(file, div(size, 2))
    :ok = :file.truncate(file)
    :ok = :file.close(file)
  end
end
