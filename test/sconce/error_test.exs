defmodule Sconce.ErrorTest do
  use ExUnit.Case, async: true

  alias Sconce.{Error, Native}

  doctest Error

  test "the list of kinds is the same in Rust and in Elixir" do
    assert {:ok, kinds} = Native.error_kinds()
    assert kinds == Enum.map(Error.kinds(), &to_string/1)
  end

  test "a panic in Rust becomes an error with its message, and the VM continues" do
    message = "deliberate, from a test"

    assert {:error, %Error{kind: :panic, op: :probe_panic, details: %{message: ^message}}} =
             Native.probe_panic(message)

    assert {:ok, _info} = Sconce.native_info()
  end

  test "an error from Rust is an exception that can be raised" do
    {:error, error} = Native.probe_echo(self())
    assert is_exception(error, Error)
    assert_raise Error, ~r/^probe_echo: term: expected data, got <\d/, fn -> raise error end
  end

  test "the message names the field, its value and its bounds" do
    details = %{field: "action", value: 5000.0, min: 0.0, max: 398.0}
    error = %Error{kind: :out_of_range, op: :act, details: details}
    assert Exception.message(error) == "act: action: 5000 is outside 0..398"
  end

  test "the message of a step that diverged names the step and its data" do
    windows = [%{game: "a.slp", frame: 90}, %{game: "b.slp", frame: -3}]
    details = %{what: "logit of main_x", value: "NaN", step: 8, batch: 7, windows: windows}

    assert Exception.message(%Error{kind: :non_finite, op: :train, details: details}) ==
             "train: logit of main_x is not finite (NaN) in step 8, whose batch 7 begins with " <>
               "a.slp, frame 90"
  end

  test "each kind has a message, also without details" do
    for kind <- Error.kinds() do
      assert Exception.message(%Error{kind: kind, op: :load}) =~ ~r/^load: #{kind}/
    end
  end
end
