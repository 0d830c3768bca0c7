/-! # Pairs -/

namespace Sample.Pairs

variable {α β : Type}

/-- The pair the other way round. -/
def swap (p : α × β) : β × α := (p.2, p.1)

@[simp]
theorem swap_fst (p : α × β) : (swap p).1 = p.2 :=
  rfl

@[simp]
theorem swap_snd (p : α × β) : (swap p).2 = p.1 :=
  rfl

theorem swap_swap (p : α × β) : swap (swap p) = p :=
  rfl

theorem swap_injective {p q : α × β} (h : swap p = swap q) : p = q := by
  have h' := congrArg swap h
  rwa [swap_swap, swap_swap] at h'

theorem exists_swap (q : β × α) : ∃ p : α × β, swap p = q :=
  ⟨swap q, swap_swap q⟩

variable (α β) in
/-- `swap` as a function. -/
theorem swap_comp_swap : (swap ∘ swap : α × β → α × β) = id := by
  funext p
  rfl

end Sample.Pairs
