defmodule Sconce.Policy.WidthsTest do
  use ExUnit.Case, async: true

  import ExUnit.CaptureLog

  alias Sconce.Policy
  alias Sconce.Policy.{Spec, Widths}

  doctest Widths

  defp odd(options), do: options |> Spec.new() |> Widths.odd()

  test "widths of a Spec that are not a multiple of 8 are listed" do
    assert odd([]) == []
    assert odd(backbone: :mlp, hidden_sizes: [64, 100, 100]) == [hidden_sizes: 100]
    assert odd(backbone: :mamba, state_size: 12) == [state_size: 12]
    assert odd(backbone: :sliding_window, head_dim: 20) == [head_dim: 20]
    assert odd(heads: :autoregressive, stream_size: 4) == [stream_size: 4]
    # The shoulder head's half of this width was not chosen by the user and is not listed.
    assert odd(head_hidden_size: 8) == []
  end

  test "a listed width gets one warning and stays unchanged" do
    # No other test uses these sizes: a VM warns about each width only once.
    own = [embedding: {:vector, 1}, heads: [go: {:bernoulli, 1}]]
    large = Spec.new(own ++ [hidden_size: 4099])
    small = own ++ [backbone: :mlp, hidden_sizes: [3001]]

    log =
      capture_log(fn ->
        for _again <- 1..3 do
          assert {:ok, policy} = Policy.init(small)
          assert inspect(policy) =~ "mlp 3001"
          assert :ok = Widths.warn(large)
        end
      end)

    assert [_, _] = Regex.scan(~r/is not a multiple/, log)

    assert log =~
             "hidden_size 4099 is not a multiple of 8 and costs as much as 4104; the width is not changed"

    assert log =~
             "hidden_sizes 3001 is not a multiple of 8 and costs as much as 3008; the width is not changed"
  end
end
