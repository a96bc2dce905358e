//! Factors that become part of a matmul: `alpha · a · b` is one operation.

use ddp_kernels::ops::MapOp;

use super::graph::{Arg, Graph, Id, Op};

impl Graph {
    /// Folds products of a number with a factor or with the result of a matmul into the matmul, where nothing else needs them;
    /// `outputs` are needed.
    pub(super) fn fold_factors(&mut self, outputs: &[Id]) {
        let is_live = self.live(outputs);
        let mut n_uses = vec![0; self.nodes.len()];
        let mut n_factor_uses = vec![0; self.nodes.len()];
        outputs.iter().for_each(|&id| n_uses[id] += 1);
        for (node, _) in self.nodes.iter().zip(&is_live).filter(|(_, is_live)| **is_live) {
            for input in node.inputs() {
                n_uses[input] += 1;
                n_factor_uses[input] += usize::from(matches!(node.op, Op::Matmul { .. }));
            }
        }
        for id in (0..self.nodes.len()).filter(|&id| is_live[id]) {
            if let Op::Matmul { transpose, mut alpha } = self.nodes[id].op {
                let mut args = self.nodes[id].args.clone();
                for arg in &mut args {
                    if let Arg::Node(factor) = *arg
                        && let Some((x, number)) = self.scaled(factor)
                        && n_uses[factor] == n_factor_uses[factor]
                    {
                        *arg = Arg::Node(x);
                        alpha *= number;
                    }
                }
                (self.nodes[id].op, self.nodes[id].args) = (Op::Matmul { transpose, alpha }, args);
            } else if let Some((x, number)) = self.scaled(id)
                && let Op::Matmul { transpose, alpha } = self.nodes[x].op
                && n_uses[x] == 1
                && n_uses[id] != n_factor_uses[id]
            {
                self.nodes[id].op = Op::Matmul { transpose, alpha: alpha * number };
                self.nodes[id].args = self.nodes[x].args.clone();
            }
        }
    }

    /// The factors, if the value is the product of a value of the same shape and a number.
    fn scaled(&self, id: Id) -> Option<(Id, f64)> {
        let node = &self.nodes[id];
        match (&node.op, &node.args[..]) {
            (
                Op::Map(MapOp::Mul),
                [Arg::Node(x), Arg::Number(number)] | [Arg::Number(number), Arg::Node(x)],
            ) if self.dims(*x) == node.dims => Some((*x, *number)),
            _ => None,
        }
    }

    /// Marks the values that the outputs depend on.
    pub(super) fn live(&self, outputs: &[Id]) -> Vec<bool> {
        let mut is_live = vec![false; self.nodes.len()];
        outputs.iter().for_each(|&id| is_live[id] = true);
        for id in (0..self.nodes.len()).rev() {
            if is_live[id] {
                self.nodes[id].inputs().for_each(|input| is_live[input] = true);
            }
        }
        is_live
    }
}
