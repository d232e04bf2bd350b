defmodule Sconce.VM do
  @moduledoc false
  # Settings of the running Erlang VM that affect native threads. `bench/schedulers.exs` measures the effects.

  @doc """
  The settings of the VM: online `schedulers`, online dirty CPU schedulers (`dirty_cpu`), `processors` that the process
  may use, `busy_wait` (the value of `+sbwt`, or `"default"`), and `bound`, whether schedulers are bound to processors.
  """
  @spec settings() :: map
  def settings do
    %{
      schedulers: :erlang.system_info(:schedulers_online),
      dirty_cpu: :erlang.system_info(:dirty_cpu_schedulers_online),
      processors: processors(),
      busy_wait: flag(:erlang.system_info(:emu_args), ~c"-sbwt"),
      bound: :erlang.system_info(:scheduler_bind_type) != :unbound
    }
  end

  defp processors do
    case :erlang.system_info(:logical_processors_available) do
      count when is_integer(count) -> count
      :unknown -> System.schedulers()
    end
  end

  # If a flag is given several times, the last value applies.
  defp flag(args, name) do
    flags = Enum.take_while(args, &(&1 != ~c"--"))

    case flags
         |> Enum.reverse()
         |> Enum.chunk_every(2, 1, :discard)
         |> Enum.find(&match?([_, ^name], &1)) do
      [value, _name] -> to_string(value)
      nil -> "default"
    end
  end

  @doc "Settings that delay decisions or native work, each with its reason and a remedy."
  @spec harmful(map) :: [{String.t(), String.t()}]
  def harmful(settings) do
    for {flag, true, why} <- [
          few_schedulers(settings),
          many_schedulers(settings),
          few_dirty(settings),
          busy_wait(settings),
          bound(settings)
        ],
        do: {flag, why}
  end

  defp few_schedulers(%{schedulers: online, processors: processors}) do
    {"+S #{online}", online < processors and online == 1,
     "all processes share one scheduler, and wait for every decision and every call on it; leave +S out"}
  end

  defp many_schedulers(%{schedulers: online, processors: processors}) do
    {"+S #{online}", online > processors,
     "#{online} schedulers share #{processors} processors, and a scheduler without a processor delays its " <>
       "processes; leave +S out"}
  end

  defp few_dirty(%{dirty_cpu: online, schedulers: schedulers}) do
    {"+SDcpu #{online}", online < schedulers,
     "calls that open, load or pack a policy wait for each other; leave +SDcpu out"}
  end

  defp busy_wait(%{busy_wait: wait}) do
    {"+sbwt #{wait}", wait in ["long", "very_long"],
     "idle schedulers spin on processors that training and import need; leave +sbwt out, or use +sbwt none if " <>
       "the machine runs more than this VM"}
  end

  defp bound(%{bound: bound}) do
    {"+sbt", bound,
     "a bound scheduler cannot move away from a processor that is busy with other work; leave +sbt out"}
  end
end
