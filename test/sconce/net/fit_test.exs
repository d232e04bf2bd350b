defmodule Sconce.Net.FitTest do
  use ExUnit.Case, async: true

  import Sconce.Test.Scratch

  alias Sconce.Net

  @small [input: [3], layers: [{:dense, 6, activation: :tanh}, {:dense, 2}]]
  # The sign of the sum of three numbers.
  @inputs for i <- 0..39, do: [rem(i * 7, 11) - 5, rem(i * 5, 13) - 6, rem(i * 3, 7) - 3]
  @classes for row <- @inputs, do: if(Enum.sum(row) > 0, do: 1, else: 0)

  defp floats(numbers),
    do: for(number <- List.flatten(numbers), into: <<>>, do: <<number::float-32-little>>)

  defp net(spec \\ @small), do: elem({:ok, _net} = Net.init(spec, seed: 1), 1)

  test "a net learns, its old handle stays as it was, and the trained one can be saved" do
    net = net()
    before = Net.run(net, [1, 2, 3])
    opts = [epochs: 60, learning_rate: 0.03, batch_size: 8]
    assert {:ok, trained, report} = Net.fit(net, @inputs, @classes, opts)
    assert %{stopped: :finished, steps: 300, epochs: 60, step: 300, validation: []} = report
    assert length(report.losses) == 300
    assert report.seconds > 0
    assert {:ok, %{accuracy: accuracy, loss: loss}} = Net.evaluate(trained, @inputs, @classes)
    assert accuracy > 0.95 and loss < hd(report.losses)
    assert Net.run(net, [1, 2, 3]) == before

    path = Path.join(tmp_dir!("fit"), "net.safetensors")
    assert Net.save(trained, path) == :ok
    assert {:ok, loaded} = Net.load(path)
    assert Net.evaluate(loaded, @inputs, @classes) == {:ok, %{accuracy: accuracy, loss: loss}}
  end

  test "binaries and lists are the same examples" do
    {:ok, _net, of_lists} = Net.fit(net(), @inputs, @classes, steps: 3)
    classes = for class <- @classes, into: <<>>, do: <<class::32-little>>
    {:ok, _net, of_binaries} = Net.fit(net(), floats(@inputs), classes, steps: 3)
    assert of_lists.losses == of_binaries.losses
  end

  test "an autoencoder learns its inputs, and a net of several inputs takes them by name" do
    spec = [input: [3], layers: [{:dense, 3}]]

    {:ok, _net, report} =
      Net.fit(net(spec), @inputs, :inputs, loss: :squared, steps: 200, learning_rate: 0.02)

    assert List.last(report.losses) < hd(report.losses) / 2

    spec = [inputs: [a: [1], b: [2]], layers: [{:inputs, a: [], b: [{:dense, 2}]}, {:dense, 1}]]
    a = for [a | _b] <- @inputs, do: [a]
    b = for [_a | b] <- @inputs, do: b
    opts = [loss: :binary, steps: 50, learning_rate: 0.1]
    {:ok, net, report} = Net.fit(net(spec), [a: a, b: b], @classes, opts)
    assert List.last(report.losses) < hd(report.losses)
    assert {:ok, found} = Net.evaluate(net, %{"a" => a, "b" => b}, @classes, loss: :binary)
    assert found.accuracy > 0.8

    assert_raise ArgumentError, ~r/one input/, fn ->
      Net.fit(net, [a: a, b: b], :inputs, loss: :squared)
    end
  end

  test "progress has each step and each epoch, and :stop ends a run" do
    parent = self()
    tell = &send(parent, &1)
    opts = [epochs: 2, batch_size: 20, val_split: 0.25, on_progress: tell]
    {:ok, _net, report} = Net.fit(net(), @inputs, @classes, opts)
    assert report.steps == 4
    for step <- 1..4, do: assert_received(%{event: :step, step: ^step, learning_rate: 1.0e-3})
    assert_received %{event: :epoch, epoch: 1, step: 2, validation: %{loss: loss, accuracy: _}}
    assert [%{step: 2, loss: ^loss}, %{step: 4}] = report.validation

    stop = fn event -> if event.step >= 3, do: :stop end
    opts = [steps: 1_000_000_000, on_progress: stop]
    assert {:ok, %Net{}, report} = Net.fit(net(), @inputs, @classes, opts)
    assert report.stopped == :stopped and report.steps >= 3
  end

  test "a progress function that raises stops the run, and the error reaches the caller" do
    opts = [steps: 1_000_000_000, on_progress: fn _event -> raise "no" end]
    assert_raise RuntimeError, "no", fn -> Net.fit(net(), @inputs, @classes, opts) end
    refute_receive {:sconce, _ref, _message}, 20
  end

  test "a run ends with the process that waits for it" do
    parent = self()

    pid =
      spawn(fn ->
        tell = fn event -> send(parent, {:step, event.step}) end
        Net.fit(net(), @inputs, @classes, steps: 1_000_000_000, on_progress: tell)
      end)

    assert_receive {:step, _first}, 5_000
    monitor = Process.monitor(pid)
    Process.exit(pid, :kill)
    assert_receive {:DOWN, ^monitor, :process, ^pid, :killed}, 5_000
  end

  test "a loss that is not finite is an error with the last good net" do
    spec = [input: [3], layers: [{:dense, 4}, {:dense, 3}]]
    opts = [loss: :squared, optimizer: :sgd, learning_rate: 1000, epochs: 1000]
    assert {:error, error} = Net.fit(net(spec), @inputs, :inputs, opts)
    assert %{kind: :non_finite, op: :fit, details: details} = error
    assert %{what: what, step: step, net: %Net{} = good, report: %{losses: losses}} = details

    assert Exception.message(error) ==
             "fit: #{what} is not finite (#{details.value}) in step #{step}"

    assert step == length(losses) + 1
    assert {:ok, _output} = Net.run(good, [0, 0, 0])
  end

  test "examples that do not fit are named" do
    for {inputs, targets, opts, message} <- [
          {[[1, 2]], [0], [], "input: expected the shape {n, 3}, got {1, 2}"},
          {[1, 2, 3], [0], [], "input: expected the shape {n, 3}, got {3}"},
          {@inputs, [0, 1], [], "targets: expected 40 for 40 examples, got 2"},
          {@inputs, [[0], [1]], [], "targets: expected the shape {n}, got {2, 1}"},
          {[[1, 2, 3]], [2], [], "target of example 0: 2 is outside 0..1"},
          {[[1, 2, 3]], [-1], [], "targets: expected numbers of 32 bits, got [-1]"},
          {[[1, 2, 3]], [[0.5, 1.5]], [loss: :binary],
           "target of example 0: 1.5 is outside 0..1"},
          {"abc", [0], [], "input input: expected numbers of 4 bytes, got 3 bytes"},
          {<<0::64, 0, 0, 0xC0, 0x7F>>, [0], [], "input input of example 0 is not finite (NaN)"}
        ] do
      assert {:error, error} = Net.fit(net(), inputs, targets, opts)
      assert Exception.message(error) == "fit: " <> message
      assert {:error, error} = Net.evaluate(net(), inputs, targets, opts)
      assert Exception.message(error) == "evaluate: " <> message
    end
  end

  test "a run that was stopped and resumed equals an uninterrupted one bit for bit" do
    path = Path.join(tmp_dir!("resume"), "run.safetensors")
    opts = [epochs: 6, batch_size: 7, val_split: 0.25, lr_schedule: :cosine, learning_rate: 0.02]
    {:ok, whole, report} = Net.fit(net(), @inputs, @classes, opts)

    stop = fn
      %{event: :step, step: step} -> if step >= 9, do: :stop
      _epoch -> :ok
    end

    opts = [checkpoint: path] ++ opts

    assert {:ok, _net, %{stopped: :stopped, steps: steps}} =
             Net.fit(net(), @inputs, @classes, [on_progress: stop] ++ opts)

    assert steps in 9..29
    assert {:ok, resumed, again} = Net.fit(net(), @inputs, @classes, [resume: true] ++ opts)
    same = [:stopped, :steps, :epochs, :losses, :validation, :step]
    assert Map.take(again, same) == Map.take(report, same)
    assert again.stopped == :finished
    assert Net.weights(resumed, as: :binaries) == Net.weights(whole, as: :binaries)
  end

  test "a run whose last state cannot be written goes on from the one before" do
    folder = tmp_dir!("last")
    path = Path.join(folder, "run.safetensors")
    # A file can have this name, but the one that is written beside it needs a longer one.
    full = Path.join(folder, String.pad_leading("run.safetensors", 255, "x"))
    opts = [epochs: 400, batch_size: 8, learning_rate: 0.01]
    assert {:ok, whole, _report} = Net.fit(net(), @inputs, @classes, opts)
    opts = [checkpoint_every: 1_000] ++ opts
    stop = [checkpoint: path, on_progress: fn _event -> :stop end]
    assert {:ok, _net, _report} = Net.fit(net(), @inputs, @classes, stop ++ opts)
    state = File.read!(path)
    :ok = File.rename(path, full)
    opts = [resume: true] ++ opts

    assert {:error, error} = Net.fit(net(), @inputs, @classes, [checkpoint: full] ++ opts)
    assert error.kind == :io and Exception.message(error) =~ "run.safetensors"
    assert File.read!(full) == state
    :ok = File.rename(full, path)
    assert {:ok, resumed, _report} = Net.fit(net(), @inputs, @classes, [checkpoint: path] ++ opts)
    assert Net.weights(resumed, as: :binaries) == Net.weights(whole, as: :binaries)
  end

  test "a state that cannot be resumed is an error that names its file" do
    path = Path.join(tmp_dir!("named"), "run.safetensors")
    opts = [epochs: 2, checkpoint: path]
    resumed = [resume: true] ++ opts
    named = fn {:error, error} -> {error.kind, Exception.message(error) =~ "run.safetensors"} end
    assert named.(Net.fit(net(), @inputs, @classes, resumed)) == {:not_found, true}
    assert {:ok, _net, _report} = Net.fit(net(), @inputs, @classes, opts)
    whole = File.read!(path)
    assert named.(Net.fit(net(), @inputs, @classes, opts)) == {:mismatch, true}
    other = [batch_size: 8] ++ resumed
    assert {:error, error} = Net.fit(net(), @inputs, @classes, other)
    assert error.kind == :mismatch and Exception.message(error) =~ "batch_size"
    others = net(input: [3], layers: [{:dense, 2}])
    assert named.(Net.fit(others, @inputs, @classes, resumed)) == {:mismatch, true}
    assert named.(Net.fit(net(), Enum.reverse(@inputs), @classes, resumed)) == {:mismatch, true}
    assert File.read!(path) == whole
    File.write!(path, binary_part(whole, 0, div(byte_size(whole), 2)))
    assert named.(Net.fit(net(), @inputs, @classes, resumed)) == {:corrupt, true}
    assert :ok = Net.save(net(), path)
    assert named.(Net.fit(net(), @inputs, @classes, resumed)) == {:corrupt, true}
    nowhere = Path.join([Path.dirname(path), "nowhere", "run.safetensors"])

    opts = [epochs: 1, checkpoint: nowhere]
    assert named.(Net.fit(net(), @inputs, @classes, opts)) == {:not_found, true}
  end

  test "options that do not fit raise" do
    for {opts, message} <- [
          {[val_split: 1], "option :val_split"},
          {[batch_size: 0], "option :batch_size"},
          {[patience: 2], "needs a :val_split"},
          {[loss: :cross], "did you mean :cross_entropy?"},
          {[epoch: 2], "did you mean :epochs?"},
          {[on_progress: 1], "option :on_progress"},
          {[checkpoint: 1], "option :checkpoint: expected"},
          {[checkpoint: "a", checkpoint_every: 0], "option :checkpoint_every"},
          {[resume: true], "option :resume needs the file of :checkpoint"}
        ] do
      assert_raise ArgumentError, Regex.compile!(Regex.escape(message)), fn ->
        Net.fit(net(), @inputs, @classes, opts)
      end
    end

    assert {:error, %{kind: :mismatch}} = Net.fit(net(), @inputs, @classes, momentum: 0.9)
    assert {:error, error} = Net.fit(net(input: [2], layers: [:relu]), [[1, 2]], [0])
    assert Exception.message(error) == "fit: net: expected a layer with weights, got none"
  end
end
