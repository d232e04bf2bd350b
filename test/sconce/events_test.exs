defmodule Sconce.EventsTest do
  # Not async: other tests must not train while `:telemetry` is a fake.
  use ExUnit.Case, async: false

  import Sconce.Test.Scratch

  alias Sconce.Env.CartPole
  alias Sconce.{Bot, Error, Events, Options, Policy, Pressure, Trainer}

  doctest Events

  @small [backbone: :gru, hidden_size: 8, num_layers: 1, head_hidden_size: 8, loss: :plain] ++
           [window_size: 16, stride: 16, batch_size: 8]

  setup_all do
    dir = tmp_dir!("events")
    {:ok, games} = CartPole.demonstrations(games: 8, steps: 60)
    {:ok, corpus} = CartPole.corpus(games, into: Path.join(dir, "corpus"))
    {:ok, dir: dir, corpus: corpus}
  end

  describe "the events of a run" do
    test "are the documented ones, with exactly the documented fields", context do
      out = [out: Path.join(context.dir, "run")]
      # The second run resumes after the last step of the first.
      looks = [gradient_report: 5]

      told =
        told(context, [steps: 10] ++ out ++ looks) ++
          told(context, [steps: 10, resume: true] ++ out)

      policy = Path.join([context.dir, "run", "best.safetensors"])
      told = told ++ told(context, steps: 1, policy: policy, out: Path.join(context.dir, "tuned"))
      # A folder with the name of a file cannot be replaced by the file.
      stuck = Path.join(context.dir, "stuck")
      File.mkdir_p!(Path.join(stuck, "best.safetensors"))
      told = told ++ told(context, steps: 2, out: stuck)
      # A limit one byte below the need of a whole batch.
      {:ok, %{bytes: bytes}} = Trainer.plan([corpus: context.corpus, val_split: 0.0] ++ @small)
      little = [memory_limit: bytes - 1, val_split: 0.0, out: Path.join(context.dir, "little")]
      told = told ++ told(context, [steps: 1] ++ little)
      # A precision that gains nothing on any machine, and a loss that overflows it.
      half = [steps: 1, precision: :f16]
      told = told ++ told(context, half ++ [out: Path.join(context.dir, "half")])
      steep = [force_precision: true, loss: [entropy_weight: 1.0e7]]
      told = told ++ told(context, half ++ steep ++ [out: Path.join(context.dir, "steep")])
      # A callback that never answers.
      late = [
        callback: fn _seen -> Process.sleep(:infinity) end,
        callback_every: 1,
        callback_ms: 1
      ]

      told = told ++ told(context, [steps: 2, out: Path.join(context.dir, "late")] ++ late)

      # A micro-batch grows only after a step has failed, which no run here does; the next test compares its fields.
      assert told |> Enum.map(& &1.event) |> Enum.uniq() |> Enum.sort() ==
               documented() -- [:grown]

      for event <- told do
        %{measurements: measurements, metadata: metadata} = documented(event.event)
        fields = event |> Map.delete(:event) |> Map.keys() |> Enum.sort()
        assert fields == Enum.sort(Keyword.keys(measurements ++ metadata)), "#{event.event}"
      end
    end

    test "are the events of the native side, decisions under pressure and the end" do
      source = File.read!("native/train/src/report.rs")
      [_, body] = Regex.run(~r/pub enum Event \{(.*?)\n\}/s, source)

      native =
        for [_, name, fields] <- Regex.scan(~r/^    ([A-Z]\w+) \{(.*?)^    \},/ms, body) do
          keys = for [_, key] <- Regex.scan(~r/^ +(\w+): /m, fields), do: String.to_atom(key)
          {name |> Macro.underscore() |> String.to_atom(), Enum.sort(keys)}
        end

      own =
        for %{name: name} = event <- Events.all(), name not in [:pressure, :done] do
          {name, Enum.sort(Keyword.keys(event.measurements ++ event.metadata))}
        end

      assert Enum.sort(native) == Enum.sort(own)
    end

    test "include one event per epoch, with its mean loss, after a validation at its end",
         context do
      told = told(context, steps: 9, out: Path.join(context.dir, "epochs"))
      %{epoch_steps: epoch_steps} = Enum.find(told, &(&1.event == :start))
      epochs = for %{event: :epoch} = event <- told, do: event
      assert Enum.map(epochs, & &1.epoch) == Enum.to_list(1..div(9, epoch_steps))

      losses = for %{event: :step, loss: loss} <- told, do: loss
      [first | _] = Enum.chunk_every(losses, epoch_steps)
      assert_in_delta hd(epochs).avg_loss, Enum.sum(first) / epoch_steps, 1.0e-9

      validated = for %{event: :validation, step: step, nll: nll} <- told, do: {step, nll}
      for %{step: step, val_loss: loss} <- epochs, do: assert({step, loss} in validated)
    end
  end

  describe "telemetry" do
    # The host's `:telemetry` if it is loaded, else a fake.
    setup do
      test = self()

      handler = fn name, measured, metadata, _ ->
        send(test, {:told, name, measured, metadata})
      end

      if Events.telemetry?(), do: attach(handler), else: fake(handler)
      :ok
    end

    test "has the documented names, measurements and metadata", context do
      out = Path.join(context.dir, "telemetry")
      messages = told(context, steps: 6, out: out)
      executed = executed(out)

      assert Enum.map(executed, &elem(&1, 0)) ==
               for(m <- messages, do: documented(m.event).telemetry)

      for {message, {_name, measured, metadata}} <- Enum.zip(messages, executed) do
        %{measurements: measurements} = documented(message.event)
        assert Enum.sort(Map.keys(measured)) == Enum.sort(Keyword.keys(measurements))
        assert %{run: run, out: ^out} = metadata
        assert is_pid(run)
        both = measured |> Map.merge(metadata) |> Map.drop([:run, :out])
        assert both == Map.delete(message, :event)
      end
    end

    test "has the usual measurement keys of training apps" do
      for {name, keys} <- [
            step: [:loss, :learning_rate, :step],
            epoch: [:avg_loss, :val_loss, :epoch],
            checkpoint: [:step]
          ] do
        %{telemetry: telemetry, measurements: measurements} = documented(name)
        assert telemetry == [:sconce, :training, name]
        assert keys -- Keyword.keys(measurements) == []
      end

      assert Keyword.has_key?(documented(:checkpoint).metadata, :path)
    end

    test "has the decisions outside of runs" do
      full = %Error{kind: :out_of_memory, op: :put}
      work = fn 1, place -> if place == :cold, do: {:ok, 1}, else: {:error, full} end
      pressure = Pressure.new(:store, rows: %{{:memory, :store} => [:cold]})
      {:ok, 1, _pressure} = Pressure.run(pressure, 1, work)
      assert_received {:told, [:sconce, :pressure, :decision], measured, metadata}
      %{measurements: measurements, metadata: fields} = documented(:pressure)
      assert Enum.sort(Map.keys(measured)) == Enum.sort(Keyword.keys(measurements))
      assert Enum.sort(Map.keys(metadata)) == Enum.sort(Keyword.keys(fields))
      assert {metadata.where, metadata.failed, metadata.decision} == {:store, :memory, :cold}
    end

    test "has each late frame of a bot as a decision" do
      {:ok, policy} =
        Policy.init(embedding: {:vector, 1}, backbone: :mlp, heads: [go: {:bernoulli, 1}])

      own = Options.validate!([policy: policy, deadline_ms: 1_000], Bot.Catalogue.schema(:start))
      {:ok, turn} = Bot.Turn.open(own)
      long_ago = System.monotonic_time() - System.convert_time_unit(60, :second, :native)
      {:none, _turn} = Bot.Turn.event(turn, {:frame, {0, [0.5]}}, long_ago)
      assert_received {:told, [:sconce, :pressure, :decision], _measured, metadata}
      assert {metadata.where, metadata.failed, metadata.decision} == {:play, :deadline, :skip}
    end

    test "has a list of names to attach to" do
      assert Events.telemetry?()
      assert Events.telemetry_names() == for(event <- Events.all(), do: event.telemetry)
    end
  end

  test "a run works without telemetry", context do
    unless Code.ensure_loaded?(:telemetry) do
      refute Events.telemetry?()
      assert %{event: :done} = context |> told(steps: 1, out: out(context)) |> List.last()
    end
  end

  defp out(context), do: Path.join(context.dir, "without")

  defp documented, do: Events.names() |> Enum.sort()
  defp documented(name), do: Enum.find(Events.all(), &(&1.name == name))

  # The messages of a run, in order.
  defp told(context, more) do
    test = self()
    opts = [corpus: context.corpus, progress: &send(test, {:seen, &1})] ++ @small
    {:ok, run} = opts |> Keyword.merge(more) |> Trainer.start_link()
    # A run that could write no file fails at its end.
    status = if match?({:ok, _report}, Trainer.await(run, 60_000)), do: :done, else: :failed
    # Its last event comes before this answer.
    %{status: ^status} = Trainer.info(run)
    GenServer.stop(run)
    seen()
  end

  defp seen do
    receive do
      {:seen, event} -> [event | seen()]
    after
      0 -> []
    end
  end

  defp executed(out) do
    receive do
      {:told, name, measured, %{out: ^out} = metadata} ->
        [{name, measured, metadata} | executed(out)]
    after
      0 -> []
    end
  end

  defp attach(handler) do
    apply(:telemetry, :attach_many, ["events", Events.telemetry_names(), handler, nil])
    on_exit(fn -> apply(:telemetry, :detach, ["events"]) end)
  end

  defp fake(handler) do
    :persistent_term.put(__MODULE__, handler)

    Module.create(
      :telemetry,
      quote do
        def execute(name, measured, metadata),
          do: :persistent_term.get(unquote(__MODULE__)).(name, measured, metadata, nil)
      end,
      Macro.Env.location(__ENV__)
    )

    on_exit(fn ->
      :code.delete(:telemetry)
      :code.purge(:telemetry)
      :persistent_term.erase(__MODULE__)
    end)
  end
end
