defmodule Sconce.Server do
  @moduledoc false
  # `use GenServer`, for a process that outlives messages which are not for it. A call that it does not know is
  # answered by an error of kind `:mismatch`; other messages are dropped. `GenServer` itself would end the process, and
  # with it a serving or a run of hours.

  alias Sconce.Error

  @callbacks [handle_call: 3, handle_cast: 2, handle_info: 2]

  defmacro __using__(opts) do
    quote do
      use GenServer, unquote(opts)
      @before_compile Sconce.Server

      # For a module that defines none of its own.
      unquote(clauses(@callbacks))
      defoverridable unquote(@callbacks)
    end
  end

  # The last clause of those that the module has defined.
  defmacro __before_compile__(env),
    do: clauses(for callback <- @callbacks, Module.defines?(env.module, callback), do: callback)

  defp clauses(callbacks), do: {:__block__, [], Keyword.keys(callbacks) |> Enum.map(&clause/1)}

  defp clause(:handle_call) do
    quote do
      def handle_call(request, _from, state),
        do: {:reply, Sconce.Server.unknown(__MODULE__, request), state}
    end
  end

  defp clause(name) do
    quote do
      def unquote(name)(_message, state), do: {:noreply, state}
    end
  end

  @doc "The answer to a call that a server does not know."
  @spec unknown(module, term) :: {:error, Error.t()}
  def unknown(server, request) do
    got = inspect(request, limit: 5, printable_limit: 80)
    details = %{what: "call", expected: "one of #{inspect(server)}", got: got}
    {:error, %Error{kind: :mismatch, op: :call, details: details}}
  end
end
