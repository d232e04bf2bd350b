defmodule Sconce.Monitor.TraceTest do
  # Not async: a trace has the spans of the whole VM.
  use ExUnit.Case, async: false

  import Sconce.Test.Scratch, only: [tmp_dir!: 1, run: 4]

  alias Sconce.{Corpus, Error, Monitor, Native, Policy, Session, Trainer}
  alias Sconce.Monitor.Json

  @spec_options [
    embedding: {:vector, 1},
    backbone: :gru,
    hidden_size: 8,
    heads: [fire: {:bernoulli, 1}]
  ]

  setup do
    [dir: tmp_dir!("trace")]
  end

  defp train(dir) do
    games = for n <- 1..3, do: {List.duplicate(n / 1, 60), List.duplicate(1, 60)}
    into = Path.join(dir, "corpus")

    {:ok, corpus} = Corpus.build({:vector, 1}, games, into: into, heads: @spec_options[:heads])

    {:ok, run} =
      Trainer.start_link(
        [corpus: corpus, out: Path.join(dir, "run"), spec: Policy.Spec.new(@spec_options)] ++
          [batch_size: 4, window_size: 8, stride: 8, steps: 3, val_split: 0]
      )

    Trainer.await(run)
  end

  defp names(trace, kind), do: for(%{kind: ^kind, name: name} <- trace.spans, do: name)

  defp events(path) do
    {:ok, %{"traceEvents" => events}} = path |> File.read!() |> Json.decode()
    events
  end

  test "a run has its calls, its steps and its ops, and the file has each of them", %{dir: dir} do
    path = Path.join(dir, "trace.json")
    assert {:ok, {{:ok, report}, trace}} = Monitor.trace(fn -> train(dir) end, to: path)
    assert report.steps == 3
    assert trace.path == path and trace.error == nil and trace.lost == 0
    steps = Enum.find(trace.spans, &(&1.name == "training step"))
    assert steps.count == 3 and steps.time_us > 0
    assert "forward pass" in names(trace, :step) and "backward pass" in names(trace, :step)
    assert names(trace, :forward) != [] and names(trace, :backward) != []
    assert "train" in names(trace, :job) and "wait for a batch" in names(trace, :wait)
    assert trace.bytes > 0 and trace.threads >= 2
    assert trace.device_time_us > 0 and trace.device_time_us <= trace.time_us

    events = events(path)
    spans = Enum.filter(events, &(&1["ph"] == "X"))
    assert length(spans) == trace.spans |> Enum.map(& &1.count) |> Enum.sum()
    threads = for %{"ph" => "M", "name" => "thread_name", "tid" => tid} <- events, do: tid
    assert Enum.all?(spans, &(&1["tid"] in threads and &1["dur"] >= 0 and &1["ts"] >= 0))
    # A thread's spans lie beside or within each other, as a viewer draws them.
    for {_thread, spans} <- Enum.group_by(spans, & &1["tid"]), do: assert(nested?(spans))
  end

  defp nested?(spans) do
    spans
    |> Enum.sort_by(&{&1["ts"], -&1["dur"]})
    |> Enum.reduce_while([], fn span, open ->
      open = Enum.drop_while(open, &(&1 <= span["ts"]))
      till = span["ts"] + span["dur"]
      # Times are rounded to nanoseconds, which a float of microseconds holds to 1e-6.
      if open == [] or till <= hd(open) + 0.002, do: {:cont, [till | open]}, else: {:halt, nil}
    end) != nil
  end

  test "decisions are spans, and the text has a row for each name", %{dir: dir} do
    {:ok, policy} = Policy.init(@spec_options, seed: 1)
    {:ok, session} = Session.open(policy, seed: 1)

    {:ok, {:done, trace}} =
      Monitor.trace(fn ->
        for _frame <- 1..10, do: {:ok, _decision} = Session.act(session, [0.5])
        :done
      end)

    assert %{kind: :decision, count: 10} = Enum.find(trace.spans, &(&1.name == "decide"))
    assert trace.path == nil
    assert inspect(trace) =~ ~r/#Sconce.Monitor.Trace<.* [um]s, a device computed in \d+ % of it/
    assert to_string(trace) =~ ~r/decision +decide +10 /
    assert Path.wildcard(Path.join(dir, "*")) == []
  end

  test "the result of the function stays if the file cannot be written", %{dir: dir} do
    path = Path.join(dir, "nowhere/trace.json")
    assert {:ok, {42, trace}} = Monitor.trace(fn -> 42 end, to: path)
    assert %Error{kind: :not_found} = trace.error
    assert trace.path == nil
    assert to_string(trace) =~ "no file: "
  end

  test "an exception ends the trace, and so does the death of its process" do
    assert_raise RuntimeError, "no", fn -> Monitor.trace(fn -> raise "no" end) end
    assert catch_throw(Monitor.trace(fn -> throw(:no) end)) == :no
    test = self()

    tracer =
      spawn(fn ->
        Monitor.trace(fn ->
          send(test, :traces)
          Process.sleep(:infinity)
        end)
      end)

    assert_receive :traces
    Process.exit(tracer, :kill)
    assert {:ok, {1, %{spans: _spans}}} = Monitor.trace(fn -> 1 end)
  end

  test "traces overlap, and each has its own spans" do
    {:ok, policy} = Policy.init(@spec_options, seed: 1)
    {:ok, session} = Session.open(policy, seed: 1)
    act = fn -> {:ok, _decision} = Session.act(session, [0.5]) end
    count = fn trace -> Enum.find(trace.spans, %{count: 0}, &(&1.name == "decide")).count end

    {:ok, {inner, outer}} =
      Monitor.trace(fn ->
        act.()
        {:ok, {_decision, inner}} = Monitor.trace(act)
        act.()
        inner
      end)

    assert {count.(inner), count.(outer)} == {1, 3}
  end

  test "a trace ends once" do
    {:ok, handle} = Native.monitor_trace()
    assert {:error, %Error{kind: :not_found}} = Native.monitor_trace_write(handle, "/nowhere")
    assert {:ok, %{spans: _spans}} = Native.monitor_trace_end(handle, false)
    assert {:error, %Error{kind: :not_found}} = Native.monitor_trace_end(handle, false)
    assert {:error, %Error{kind: :not_found}} = Native.monitor_trace_write(handle, "/nowhere")
  end

  test "arguments are checked" do
    assert_raise ArgumentError, ~r/without arguments/, fn ->
      Monitor.trace(&Function.identity/1)
    end

    assert_raise ArgumentError, ~r/:into/, fn -> Monitor.trace(fn -> 1 end, into: "x") end
  end

  test "SCONCE_TRACE writes a trace of the whole VM, however it ends", %{dir: dir} do
    script = """
    {:ok, _} = Application.ensure_all_started(:sconce)
    {:ok, policy} = Sconce.Policy.init(#{inspect(@spec_options)}, seed: 1)
    {:ok, session} = Sconce.Session.open(policy, seed: 1)
    for _ <- 1..5, do: {:ok, _} = Sconce.Session.act(session, [0.5])
    """

    for {ending, name} <- [
          {"", "end"},
          {"System.stop(); Process.sleep(60_000)", "stop"},
          {"raise \"no\"", "raise"}
        ] do
      path = Path.join(dir, name <> ".json")
      ebin = Application.app_dir(:sconce, "ebin")

      {output, _status} =
        run("elixir", ["-pa", ebin, "-e", script <> ending], dir, [{"SCONCE_TRACE", path}])

      assert File.exists?(path), output
      assert Enum.count(events(path), &(&1["name"] == "decide")) == 5
    end
  end
end
