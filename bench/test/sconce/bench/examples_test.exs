defmodule Sconce.Bench.ExamplesTest do
  use ExUnit.Case, async: true

  alias Sconce.Bench.Examples
  alias Sconce.{Net, Zoo}

  # Short runs of the three networks that `zoo_train.exs` trains. A guess is right once in 12 and in 10.

  test "a spotter of keywords learns words of tones" do
    {inputs, words} = Examples.keywords(120, 1)
    {:ok, net} = Zoo.init(:keyword_spot, seed: 1)
    opts = [epochs: 8, learning_rate: 2.0e-3, batch_size: 16]
    {:ok, net, _report} = Net.fit(net, inputs, Examples.classes(words), opts)
    {inputs, words} = Examples.keywords(48, 2)
    {:ok, found} = Net.evaluate(net, inputs, Examples.classes(words))
    assert found.accuracy > 0.5
  end

  test "a detector of anomalies has larger errors on windows of a machine with a fault" do
    {inputs, flags} = Examples.vibrations(1000, 1, 0.0)
    assert Enum.uniq(flags) == [0]
    {:ok, net} = Zoo.init(:anomaly_detect, seed: 1)
    opts = [loss: :squared, epochs: 15, learning_rate: 5.0e-3]
    {:ok, net, _report} = Net.fit(net, inputs, :inputs, opts)
    {windows, flags} = Examples.vibrations(200, 2, 0.5)
    assert Enum.sum(flags) == 100

    errors =
      for <<window::binary-size(640) <- windows>> do
        {:ok, %{loss: loss}} = Net.evaluate(net, window, :inputs, loss: :squared)
        loss
      end

    assert Examples.auc(errors, flags) > 0.8
  end

  test "a net of images learns digits" do
    {inputs, digits} = Examples.digits(200, 1)
    {:ok, net} = Zoo.init(:gesture_net, seed: 1)
    opts = [epochs: 3, learning_rate: 5.0e-3, batch_size: 20]
    {:ok, _net, report} = Net.fit(net, inputs, Examples.classes(digits), opts)
    mean = fn losses -> Enum.sum(losses) / length(losses) end
    assert mean.(Enum.take(report.losses, -10)) < mean.(Enum.take(report.losses, 10)) - 0.3
  end

  test "the area under the curve counts ordered pairs" do
    assert Examples.auc([0.1, 0.2, 0.3, 0.4], [0, 0, 1, 1]) == 1.0
    assert Examples.auc([0.4, 0.2, 0.3, 0.1], [0, 0, 1, 1]) == 0.25
  end
end
