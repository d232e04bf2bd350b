defmodule Sconce.Bot.ListingTest do
  # The registry restarts, which ends all servings of the VM.
  use ExUnit.Case, async: false

  alias Sconce.{Bot, Policy}

  @registry Sconce.Serving.Registry

  setup do
    on_exit(fn -> Supervisor.restart_child(Sconce.Supervisor, @registry) end)
    {:ok, policy} = Policy.init([embedding: {:vector, 1}, heads: [go: {:bernoulli, 1}]], seed: 1)
    {:ok, bot} = Bot.start_link(policy: policy, deadline_ms: 60_000)
    {:ok, _action} = Bot.step(bot, {0, [0.5]})
    %{bot: bot}
  end

  defp entry(bot) do
    @registry |> Registry.lookup({Bot, bot}) |> List.first()
  rescue
    ArgumentError -> nil
  end

  defp eventually(fun, tries \\ 500) do
    cond do
      value = fun.() -> value
      tries == 0 -> flunk("not within #{tries} looks")
      true -> Process.sleep(10) && eventually(fun, tries - 1)
    end
  end

  defp frames(bot) do
    {:ok, %{game: %{frames: frames}}} = Bot.info(bot)
    frames
  end

  test "a bot without a bridge plays on while the registry is down, and is listed again", %{
    bot: bot
  } do
    assert {listing, totals} = entry(bot)
    :ok = Supervisor.terminate_child(Sconce.Supervisor, @registry)
    assert entry(bot) == nil
    {:ok, _action} = Bot.step(bot, {1, [0.5]})
    {:ok, _registry} = Supervisor.restart_child(Sconce.Supervisor, @registry)
    assert eventually(fn -> entry(bot) end) == {listing, totals}
    {:ok, _action} = Bot.step(bot, {2, [0.5]})
    assert frames(bot) == 3
  end

  test "a bot is listed again after a part of the registry has crashed", %{bot: bot} do
    [partition] =
      for {_id, pid, :worker, _modules} <- Supervisor.which_children(@registry), do: pid

    watch = Process.monitor(partition)
    Process.exit(partition, :kill)
    assert_receive {:DOWN, ^watch, :process, _partition, :killed}
    eventually(fn -> entry(bot) end)
    {:ok, _action} = Bot.step(bot, {1, [0.5]})
    assert frames(bot) == 2
  end

  test "a bot that ends takes its entry with it", %{bot: bot} do
    {listing, _totals} = entry(bot)
    watch = Process.monitor(listing)
    :ok = GenServer.stop(bot)
    assert_receive {:DOWN, ^watch, :process, _listing, :normal}
    assert eventually(fn -> entry(bot) == nil end)
  end

  test "a bot starts while the registry is down, and is listed later" do
    :ok = Supervisor.terminate_child(Sconce.Supervisor, @registry)
    {:ok, policy} = Policy.init([embedding: {:vector, 1}, heads: [go: {:bernoulli, 1}]], seed: 1)
    {:ok, bot} = Bot.start_link(policy: policy, deadline_ms: 60_000)
    {:ok, _registry} = Supervisor.restart_child(Sconce.Supervisor, @registry)
    assert {_listing, _totals} = eventually(fn -> entry(bot) end)
  end
end
