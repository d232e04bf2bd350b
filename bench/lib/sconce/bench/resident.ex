defmodule Sconce.Bench.Resident do
  @moduledoc false
  # Resident memory of training steps: the peak of a process that does nothing else, minus the process's memory
  # after the library was loaded. `bench/peers/README.md` has this rule, which applies to the peers too.

  alias Sconce.Bench.{Child, Machine}
  alias Sconce.Native
  alias Sconce.Policy.Spec

  @status "/proc/self/status"
  @forget "/proc/self/clear_refs"

  @doc "Peak bytes of five training steps of a Spec; nil if the system does not report it."
  @spec peak(Spec.t(), map) :: non_neg_integer | nil
  def peak(%Spec{} = spec, steps) do
    work = {Spec.to_native(spec), %{steps | seconds: 0.0, min_steps: 5}}
    encoded = work |> :erlang.term_to_binary() |> Base.encode64()
    code = "#{inspect(__MODULE__)}.print(#{inspect(encoded)})"

    with true <- File.exists?(@status),
         elixir when is_binary(elixir) <- System.find_executable("elixir"),
         {printed, 0} <- System.cmd(elixir, Child.code_paths() ++ ["-e", code]) do
      printed |> String.trim() |> String.to_integer()
    else
      _ -> nil
    end
  end

  @doc false
  def print(encoded) do
    {spec, steps} = encoded |> Base.decode64!() |> :erlang.binary_to_term()
    # A first, tiny run loads code and starts threads, which do not count as memory of the steps.
    tiny =
      Spec.new(
        embedding: {:vector, 1},
        backbone: :mlp,
        hidden_sizes: [1],
        heads: [x: {:bernoulli, 1}]
      )

    Machine.answer(&Native.bench_train(&1, Spec.to_native(tiny), %{steps | batch: 1, window: 1}))
    File.write!(@forget, "5")
    before = kilobytes("VmRSS")
    Machine.answer(&Native.bench_train(&1, spec, steps))
    IO.puts(1024 * max(kilobytes("VmHWM") - before, 0))
  end

  defp kilobytes(field) do
    [_, number] = Regex.run(~r/#{field}:\s+(\d+) kB/, File.read!(@status))
    String.to_integer(number)
  end
end
