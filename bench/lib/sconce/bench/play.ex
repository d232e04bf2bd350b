defmodule Sconce.Bench.Play do
  @moduledoc false
  # The cases of `mix bench play`: steps of environments natively and from Elixir, and runs of PPO.

  alias Sconce.Bench.{Case, Machine, PPO}
  alias Sconce.{Env, Figures, Native}

  @counts [1, 64, 4096]
  # Fields of the counters of an environment, each 4 bytes.
  @counters 4

  @doc "All cases; those of PPO with one thread and with `threads`."
  @spec all(pos_integer) :: [Case.t()]
  def all(threads), do: steps() ++ PPO.all(threads)

  defp steps do
    for name <- Env.names(), count <- @counts, {how, run} <- ways() do
      %Case{
        name: "env",
        case: "#{name}, #{how}",
        batch: count,
        threads: 1,
        limit: &limit(name, count, &1),
        run: fn budget ->
          {:ok, env} = Env.new(name, count: count)
          us = run.(env, inputs(env), budget)
          million = count / Figures.percentile(us, 50)
          %{us: us, extra: %{rates: "#{Figures.decimal(million)} M steps/s, #{env.lane}"}}
        end
      }
    end
  end

  defp ways do
    [
      {"native loop", &native/3},
      {"from Elixir by handle", &by_handle/3},
      {"from Elixir by binaries", &by_binaries/3}
    ]
  end

  defp native(env, inputs, budget) do
    options = %{env: env.name, count: env.count}
    Machine.answer(&Native.bench_env(&1, options, inputs, budget))
  end

  defp by_handle(env, inputs, budget) do
    :ok = Env.put(env, inputs)
    {us, {:ok, _ended}} = Case.time(fn -> Env.advance(env) end, budget)
    {:ok, observation} = Env.read(env, :observation)
    {:ok, reward} = Env.read(env, :reward)
    check!(env, %{observation: observation, reward: reward})
    us
  end

  defp by_binaries(env, inputs, budget) do
    {us, {:ok, step}} = Case.time(fn -> Env.step(env, inputs) end, budget)
    check!(env, step)
    us
  end

  # The last step has a finite reward and a finite observation for each row, and every environment has stepped as often.
  defp check!(env, %{observation: observation, reward: reward}) do
    {:ok, steps} = Env.steps(env)
    numbers = byte_size(observation) + byte_size(reward)

    numbers == 4 * env.rows * (env.spec.observation_size + 1) ||
      raise "#{numbers} bytes of a step"

    finite?(observation <> reward) || raise "a number of a step is not finite"
    (steps > 0 and rem(steps, env.count) == 0) || raise "#{steps} steps"
  end

  # NaN and infinities do not match the segment of a float.
  defp finite?(<<_number::float-32-little, rest::binary>>), do: finite?(rest)
  defp finite?(rest), do: rest == ""

  # A class or a number that every world takes, different from row to row.
  defp inputs(env) do
    choices = for {_name, kind} <- env.spec.heads, do: classes(kind)
    rows = for row <- 1..env.rows, choice <- choices, do: choice.(row)
    for number <- rows, into: <<>>, do: <<number::float-32-little>>
  end

  defp classes({:categorical, n}), do: &rem(&1 * 7919, n)
  defp classes(_number), do: &(rem(&1 * 7919, 101) / 50 - 1)

  # Bytes that a step reads or writes: state and counters both ways, inputs, observations, rewards and flags.
  defp limit(name, count, _measured) do
    {:ok, env} = Env.new(name)
    {:ok, state} = Env.state(env)
    %{observation_size: seen, num_labels: labels, seats: seats} = env.spec
    bytes = 8 * (length(state) + @counters) + seats * (4 * (labels + seen + 1) + 2)
    Machine.bytes(bytes * count, 1, "reading and writing a step")
  end
end
