defmodule Sconce.Bench.Attack.Terms do
  @moduledoc false
  # Item 9: every argument and every option of the public functions, each replaced by invalid terms.

  import Sconce.Bench.Attack, only: [answer: 1]
  import Sconce.Bench.Attack.Fixtures

  alias Sconce.Bench.Attack

  alias Sconce.{
    Corpus,
    Device,
    Embedding,
    Loader,
    Policy,
    Preset,
    Serving,
    Session,
    Temporal,
    Trainer
  }

  alias Sconce.Trainer.Catalogue

  # A call without an answer in this time counts as hung.
  @hung_ms 5_000
  @shown 12

  def rows do
    for {name, calls} <- [
          {"Policy", &policies/1},
          {"Session", &sessions/1},
          {"Serving", &servings/1},
          {"Corpus", &corpora/1},
          {"Loader", &loaders/1},
          {"Trainer", &trainers/1},
          {"Trainer.start_link options", &runs/1},
          {"Preset, Device, Embedding and Temporal", &tables/1}
        ] do
      %Attack{
        item: 9,
        name: "#{length(odd())} odd terms in every place of #{name}",
        make: &make/1,
        attack: &attack(&1, calls),
        accept: &none_raw/1,
        seconds: nil,
        # No memory limit, because the terms themselves take megabytes.
        mb: nil,
        patience_ms: 400_000
      }
    end
  end

  defp make(dir) do
    checkpoint!(dir)
    dir |> corpus!(4, 40) |> run!(Path.join(dir, "run"))
  end

  defp odd do
    [nil, true, :odd, 0, -1, 5, 2 ** 40, 2 ** 64, 2 ** 200, -(2 ** 63) - 1, 0.5, 1.0e308] ++
      ["", "odd", <<255, 254>>, "a\0b", <<1::3>>, ~c"list", :binary.copy("x", 1_000_000)] ++
      [[], [5], [1 | 2], [:a | :b], [{:a, 1} | :b], [a: 1], [a: 1, a: 2], [[[1 | 2]]], [nil]] ++
      [
        {},
        {:a, 1},
        {:a, 1, 2, 3},
        {:odd, {:odd, 5}},
        %{},
        %{a: 1},
        %{__struct__: Odd},
        1..3,
        ~r/odd/
      ] ++
      [make_ref(), spawn(fn -> :ok end), &is_atom/1, fn -> raise "called" end]
  end

  # A call is `{name, function, valid arguments, options: {argument index, names}}`.
  defp attack(dir, calls) do
    # Calls write files with relative paths into this folder.
    File.cd!(dir)
    Process.flag(:trap_exit, true)

    answers =
      for call <- calls.(dir),
          {label, args} <- variants(call),
          do: {label, apart(elem(call, 1), args)}

    # The calls may have started processes that are linked to this one.
    {:links, links} = Process.info(self(), :links)
    for pid <- links, is_pid(pid), do: Process.exit(pid, :shutdown)
    answers
  end

  defp variants({name, _call, args, options}) do
    for(
      {_arg, at} <- Enum.with_index(args),
      odd <- odd(),
      do: {label(name, place(args, at), odd), List.replace_at(args, at, odd)}
    ) ++
      for {at, names} <- options,
          option <- names,
          odd <- odd(),
          do: {label(name, option, odd), List.update_at(args, at, &Keyword.put(&1, option, odd))}
  end

  # A handle is a struct, or `:none` instead of a process or a session.
  defp place(args, at) do
    arg = Enum.at(args, at)
    if is_struct(arg) or arg == :none, do: "handle", else: at
  end

  defp label(name, at, odd), do: {name, at, inspect(odd, limit: 3, printable_limit: 10)}

  # Calls in a separate process that traps exits, because a failed start sends exit signals.
  defp apart(call, args) do
    test = self()

    {pid, monitor} =
      spawn_monitor(fn ->
        Process.flag(:trap_exit, true)
        send(test, {:answer, self(), answer(fn -> apply(call, args) end)})
      end)

    receive do
      {:answer, ^pid, answer} ->
        Process.demonitor(monitor, [:flush])
        answer

      {:DOWN, ^monitor, _, _, reason} ->
        {:raw, "the caller ended: #{inspect(reason, limit: 5)}"}
    after
      @hung_ms ->
        Process.exit(pid, :kill)
        {:raw, "no answer within #{@hung_ms} ms"}
    end
  end

  # Lists each place with raw errors once, with the first error's text.
  defp none_raw(answers) do
    raw =
      for {{name, at, odd}, {:raw, text}} <- answers,
          not at_the_door?(at, text),
          do: {{name, at}, "#{odd}: #{text}"}

    places = Enum.group_by(raw, &elem(&1, 0), &elem(&1, 1))

    told =
      for {{name, at}, [first | more]} <- Enum.take(Enum.sort(places), @shown),
          do: "#{name} #{at} (#{1 + length(more)}) #{first}"

    if raw == [],
      do: [],
      else: ["#{length(raw)} of #{length(answers)} raw, in #{map_size(places)} places" | told]
  end

  # A function of Sconce without a clause for an invalid handle names itself in the error.
  defp at_the_door?("handle", "no function clause matching in Sconce." <> _function), do: true
  defp at_the_door?(_at, _text), do: false

  @sampling ~w(temperature deterministic deterministic_buttons press_threshold release_threshold)a
  @both ~w(seed logits project_out)a ++ @sampling
  @open ~w(mode window_size lane frame_delay weights snapshot device)a ++ @both
  @act ~w(previous queue choices game_frame deadline_ms)a ++ @both
  @forward ~w(batch labels queue frame_delay state return_sequences taps project_out deadline_ms)a

  defp policies(dir) do
    policy = policy!()
    spec = [embedding: {:vector, 2}, heads: [go: {:categorical, 2}], backbone: :mlp]
    path = Path.join(dir, "policy.safetensors")
    frames = [[[0.0, 1.0]]]

    [
      {"init", &Policy.init/2, [spec, []],
       [
         {0, ~w(embedding heads backbone hidden_sizes hidden_size num_layers head_hidden_size)a},
         {1, [:seed, :device]}
       ]},
      {"load", &Policy.load/2, [path, []], [{1, [:device]}]},
      {"save", &Policy.save/3, [policy, "saved", []], [{2, [:notes]}]},
      {"to", &Policy.to/2, [policy, :cpu], []},
      {"info", &Policy.info/1, [policy], []},
      {"weights", &Policy.weights/1, [policy], []},
      {"weight", &Policy.weight/2, [policy, "w"], []},
      {"forward", &Policy.forward/3, [policy, frames, []], [{2, @forward}]},
      {"step", &Policy.step/3, [policy, hd(frames), []], [{2, @forward}]}
    ]
  end

  defp sessions(_dir) do
    policy = policy!()
    frame = [0.0, 1.0]

    [
      {"open", &opened_and_closed(&1, &2, frame), [policy, []], [{1, @open}]},
      {"act", &in_session(policy, fn it -> Session.act(it, &1, &2) end),
       [frame, [deadline_ms: 1_000]], [{1, @act}]},
      {"act of", &Session.act/3, [:none, frame, []], []},
      {"act_many", &Session.act_many/2, [[], []], [{1, [:deadline_ms]}]},
      {"act_many of", &in_session(policy, fn it -> Session.act_many([{it, frame} | &1]) end),
       [[]], []},
      {"reset", &in_session(policy, fn it -> Session.reset(it, &1) end), [[]], [{0, [:seed]}]},
      {"rollback", &in_session(policy, fn it -> Session.rollback(it, &1) end), [0], []},
      {"restore", &in_session(policy, fn it -> Session.restore(it, &1) end), ["snapshot"], []},
      {"transfer", &in_session(policy, fn it -> Session.transfer(it, &1) end), [:none], []},
      {"snapshot", &Session.snapshot/1, [:none], []},
      {"info", &Session.info/1, [:none], []},
      {"close", &Session.close/1, [:none], []}
    ]
  end

  defp opened_and_closed(policy, opts, frame) do
    with {:ok, session} <- Session.open(policy, opts) do
      acted = Session.act(session, frame, deadline_ms: 1_000)
      Session.close(session)
      with {:ok, _action} <- acted, do: :ok
    end
  end

  defp in_session(policy, use) do
    {:ok, session} = Session.open(policy)

    try do
      use.(session)
    after
      answer(fn -> Session.close(session) end)
    end
  end

  defp servings(dir) do
    policy = policy!()
    {:ok, serving} = Serving.start_link(policy: policy)
    path = Path.join(dir, "policy.safetensors")
    frames = [[[0.0, 1.0]]]
    start = ~w(policy name max_batch max_queue workers weights device lane group telemetry_ms)a

    [
      {"start_link", &started_and_stopped/1, [[policy: policy]], [{0, start}]},
      {"open", &opened_and_ended/2, [serving, []], [{1, @open}]},
      {"forward", &Serving.forward/4, [serving, frames, nil, []], [{3, @forward}]},
      {"swap", &Serving.swap/2, [serving, path], []},
      {"drain", &Serving.drain/2, [:none, 0], []},
      {"stop", &Serving.stop/1, [:none], []},
      {"stats", &Serving.stats/1, [serving], []},
      {"members", &Serving.members/1, [:none], []},
      {"info", &Serving.info/1, [serving], []}
    ]
  end

  defp started_and_stopped(opts),
    do: with({:ok, serving} <- Serving.start_link(opts), do: Serving.stop(serving))

  defp opened_and_ended(serving, opts),
    do: with({:ok, session} <- Serving.open(serving, opts), do: Session.close(session))

  defp corpora(dir) do
    path = Path.join(dir, "corpus")
    {:ok, corpus} = Corpus.open(path)
    game = {[[0.0, 1.0]], [1]}
    built = [into: "built", heads: [go: {:categorical, 2}]]

    [
      {"open", &Corpus.open/1, [path], []},
      {"import", &Corpus.import/2, ["none", [into: "imported", progress: false]],
       [{1, ~w(into min_frames threads progress)a}]},
      {"build", &Corpus.build/3, [{:vector, 2}, [game], built], [{2, ~w(into heads)a}]},
      {"build of x", &Corpus.build({:vector, 2}, [{&1, [1]}], built), [[[0.0, 1.0]]], []},
      {"build of labels", &Corpus.build({:vector, 2}, [{[[0.0, 1.0]], &1}], built), [[1]], []},
      {"verify", &Corpus.verify/2, [corpus, [progress: false]], [{1, [:progress]}]},
      {"info", &Corpus.info/1, [corpus], []},
      {"games", &Corpus.games/1, [corpus], []},
      {"recording", &Corpus.recording/3, [corpus, 0, 0], []},
      {"character", &Corpus.character/1, [0], []},
      {"character_id", &Corpus.character_id/1, ["Fox"], []}
    ]
  end

  defp loaders(dir) do
    path = Path.join(dir, "corpus")

    names = Keyword.keys(Loader.schema()) ++ [:unroll]
    small = [batch_size: 2, window_size: 5]

    [
      {"info", &Loader.info/2, [path, small], [{1, names}]},
      {"stream", &(&1 |> Loader.stream(&2) |> Enum.take(1)), [path, small], [{1, names}]}
    ]
  end

  defp trainers(dir) do
    run = Path.join(dir, "run")
    best = Path.join(run, "best.safetensors")
    corpus = Path.join(dir, "corpus")

    [
      {"await", &Trainer.await/2, [:none, 0], []},
      {"stop", &Trainer.stop/1, [:none], []},
      {"info", &Trainer.info/1, [:none], []},
      {"subscribe", &Trainer.subscribe/1, [:none], []},
      {"report", &Trainer.report/1, [run], []},
      {"gradients", &Trainer.gradients/1, [run], []},
      {"start_link", &stopped/1, [training(corpus, "new")], []},
      {"evaluate", &Trainer.evaluate/3, [best, corpus, []],
       [{2, ~w(train device progress threads mode window_size)a}]},
      {"plan", &Trainer.plan/2, [nil, [embedding: {:vector, 2}, heads: [go: {:categorical, 2}]]],
       []}
    ]
  end

  # A run with valid options starts and is stopped.
  defp runs(dir) do
    opts = dir |> Path.join("corpus") |> training("options")
    names = Keyword.keys(Catalogue.schema(:run)) -- [:resume]
    [{"start_link", &stopped/1, [opts], [{0, names}]}]
  end

  defp stopped(opts) do
    with {:ok, run} <- Trainer.start_link(opts) do
      Trainer.stop(run)
      answer = Trainer.await(run, 4_000)
      Process.unlink(run)
      Process.exit(run, :shutdown)
      answer
    end
  end

  defp tables(_dir) do
    [
      {"get", &Preset.get/1, [:quick], []},
      {"resolve", &Device.resolve/1, [:cpu], []},
      {"pack", &Embedding.pack/2, [{:vector, 2}, [0.0, 1.0]], []},
      {"taps", &Temporal.taps/1, [:gru], []}
    ]
  end
end
