defmodule Sconce.OptionsTest do
  use ExUnit.Case, async: true

  alias Sconce.Options

  doctest Options

  @schema [
    batch_size: [type: :pos_integer, default: 256, doc: "Windows in a step."],
    learning_rate: [type: :float, default: 3.0e-4, min: 0],
    backbone: [type: {:in, [:mlp, :lstm, :gru]}],
    pos_weight: [type: {:or, [nil, :auto, {:list, :float}]}, default: :auto],
    betas: [type: {:tuple, [:float, :float]}],
    out: [type: :path, required: true]
  ]

  test "defaults are filled in, numbers converted, and options follow the schema's order" do
    assert Options.validate!([out: "run", learning_rate: 1], @schema) ==
             [batch_size: 256, learning_rate: 1.0, pos_weight: :auto, out: "run"]
  end

  test "compound types check and convert their elements" do
    valid = &Options.validate!([{:out, "run"} | &1], @schema)

    assert valid.(pos_weight: nil)[:pos_weight] == nil
    assert valid.(pos_weight: [1, 2.5])[:pos_weight] == [1.0, 2.5]
    assert valid.(betas: {0, 0.95})[:betas] == {0.0, 0.95}
  end

  test "bounds hold for numbers to which adding 1 changes nothing" do
    fit = &Options.fit(&1, [type: :float] ++ &2)
    assert fit.(1.0e40, above: 0, max: 1.0e150) == {:ok, 1.0e40}
    assert fit.(-1.0e40, below: 0) == {:ok, -1.0e40}
    assert fit.(1.0e30, min: 0, max: 1.0e30) == {:ok, 1.0e30}
    assert fit.(2.0e30, min: 0, max: 1.0e30) == :error
    assert fit.(0, above: 0) == :error
    assert fit.(1.0e40, below: 1.0e40) == :error
  end

  test "a size in bytes is a number or a text with a unit" do
    fit = &Options.fit(&1, type: :bytes)
    assert fit.(1500) == {:ok, 1500}

    for text <- ["2GB", "2 gb", "2000MB", "2e9", "2000000000"],
        do: assert(fit.(text) == {:ok, 2_000_000_000})

    assert fit.("1.5GiB") == {:ok, 1_610_612_736}

    for wrong <- [0, -1, 1.5, "", "GB", "-2GB", "2 Gigs", "0.1", nil],
        do: assert(fit.(wrong) == :error)
  end

  test "an unknown option names the nearest one, else all" do
    assert raised(batchsize: 3) == "unknown option :batchsize, did you mean :batch_size?"
    assert raised(zzz: 3) =~ "unknown option :zzz, expected one of :batch_size, :learning_rate"
  end

  test "a wrong value names the option, the value and the expected type" do
    assert raised(batch_size: 0) == "option :batch_size: expected a positive integer, got: 0"

    assert raised(backbone: :gru2) ==
             "option :backbone: expected one of :mlp, :lstm, :gru, got: :gru2, did you mean :gru?"

    assert raised(learning_rate: -1) ==
             "option :learning_rate: expected a number of at least 0, got: -1"

    assert raised(pos_weight: :none) ==
             "option :pos_weight: expected nil or :auto or a list, each a number, got: :none"

    assert raised(betas: {1, 2, 3}) =~ "expected {a number, a number}, got: {1, 2, 3}"
  end

  test "a missing required option is named, and options must be a keyword list" do
    assert_raise ArgumentError, "option :out is required: a path", fn ->
      Options.validate!([], @schema)
    end

    assert_raise ArgumentError, ~r/expected options, got: %{}/, fn ->
      Options.validate!(%{}, @schema)
    end
  end

  test "docs show type, default and description" do
    docs = Options.docs(@schema)
    assert docs =~ "  * `:batch_size` - a positive integer, default `256`. Windows in a step.\n"
    assert docs =~ "  * `:backbone` - one of :mlp, :lstm, :gru.\n"
    assert docs =~ "  * `:out` - a path, required."
  end

  defp raised(opts) do
    message = fn -> Options.validate!([{:out, "run"} | opts], @schema) end
    assert_raise(ArgumentError, message).message
  end
end
