//! A device mesh: the ranks of a job as a grid with named dimensions, and a process group along each line of the grid.
//!
//! Leaves out slices of several dimensions.

use std::rc::Rc;

use c10d::{GroupOptions, ProcessGroup, Rank};

/// A grid of ranks; `torch.distributed.device_mesh.init_device_mesh`.
///
/// ```no_run
/// # fn run(group: &c10d::ProcessGroup) -> anyhow::Result<()> {
/// use lockstep::DeviceMesh;
///
/// // Four ranks: 0 and 1 share a model, 2 and 3 another copy of it.
/// let mesh = DeviceMesh::new(group, &[("data", 2), ("tensor", 2)], group.options())?;
/// let gradients = mesh.group("data")?; // 0 with 2, 1 with 3
/// let activations = mesh.group("tensor")?; // 0 with 1, 2 with 3
/// # drop((gradients, activations)); Ok(()) }
/// ```
///
/// Ranks are counted with the last dimension fastest: keep the dimension that communicates most last, so that its ranks are
/// neighbours on one machine.
#[derive(Debug)]
pub struct DeviceMesh {
    dimensions: Vec<Dimension>,
}

#[derive(Debug)]
struct Dimension {
    name: String,
    /// This rank's line along the dimension.
    group: Rc<ProcessGroup>,
}

/// A mesh that cannot be, or a dimension that it has not.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MeshError {
    /// The grid has not as many places as the group has ranks.
    #[error("a mesh of {shape} has {places} places for {ranks} ranks")]
    Size {
        /// The grid, as `data 2 × tensor 2`.
        shape: String,
        /// The product of its dimensions.
        places: usize,
        /// Ranks in the group.
        ranks: usize,
    },
    /// Two dimensions have one name.
    #[error("a mesh has two dimensions named {0:?}")]
    Twice(String),
    /// No dimension has this name.
    #[error("the mesh has no dimension {name:?}; it has {known}")]
    NoSuchDimension {
        /// The name asked for.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// A line's group could not be made.
    #[error("failed to make the group of ranks along the dimension {name:?}")]
    Group {
        /// The dimension.
        name: String,
        /// The group's failure.
        #[source]
        source: c10d::Error,
    },
}

impl DeviceMesh {
    /// Lays the ranks of `world`, the job's group, out as a grid and makes a group for each line. Every rank of the job calls it
    /// with the same dimensions.
    ///
    /// # Errors
    /// The dimensions do not multiply to the number of ranks, or two have one name: before anything is sent. A rank is missing.
    pub fn new(world: &ProcessGroup, dimensions: &[(&str, usize)], options: &GroupOptions) -> Result<Self, MeshError> {
        check(world, dimensions)?;
        let along = |at: usize| {
            let name = dimensions[at].0.to_owned();
            let group = line_of(world, &lines(dimensions, at), options);
            group
                .map(|group| Dimension { name: name.clone(), group: Rc::new(group) })
                .map_err(|source| MeshError::Group { name, source })
        };
        Ok(DeviceMesh { dimensions: (0..dimensions.len()).map(along).collect::<Result<_, _>>()? })
    }

    /// The group of the ranks that differ from this one in the dimension `name` alone.
    ///
    /// # Errors
    /// The mesh has no such dimension.
    pub fn group(&self, name: &str) -> Result<&Rc<ProcessGroup>, MeshError> {
        let found = self.dimensions.iter().find(|dimension| dimension.name == name);
        found.map(|dimension| &dimension.group).ok_or_else(|| {
            let known: Vec<_> = self.dimensions.iter().map(|dimension| dimension.name.as_str()).collect();
            MeshError::NoSuchDimension { name: name.to_owned(), known: known.join(", ") }
        })
    }

    /// This rank's place in each dimension, in order.
    pub fn coordinate(&self) -> Vec<usize> {
        self.dimensions.iter().map(|dimension| dimension.group.rank().get()).collect()
    }

    /// The dimensions with their sizes, in order.
    pub fn shape(&self) -> Vec<(&str, usize)> {
        self.dimensions.iter().map(|dimension| (dimension.name.as_str(), dimension.group.size().get())).collect()
    }
}

/// Divides the job into groups of `size` neighbours, as the ranks of one node, and returns this rank's;
/// `torch.distributed.new_subgroups`. Every rank of the job calls it.
///
/// # Errors
/// `size` does not divide the number of ranks; a rank is missing.
pub fn new_subgroups(world: &ProcessGroup, size: usize, options: &GroupOptions) -> Result<ProcessGroup, MeshError> {
    let dimensions = [("subgroup", world.size().get().checked_div(size).unwrap_or(0)), ("member", size)];
    check(world, &dimensions)?;
    let group = line_of(world, &lines(&dimensions, 1), options);
    group.map_err(|source| MeshError::Group { name: "member".to_owned(), source })
}

/// Returns an error unless the grid has a place for each rank, and each dimension a name of its own.
fn check(world: &ProcessGroup, dimensions: &[(&str, usize)]) -> Result<(), MeshError> {
    let ranks = world.size().get();
    let places = dimensions.iter().try_fold(1_usize, |places, (_, size)| places.checked_mul(*size)).unwrap_or(0);
    if places != ranks {
        let shape: Vec<_> = dimensions.iter().map(|(name, size)| format!("{name} {size}")).collect();
        return Err(MeshError::Size { shape: shape.join(" × "), places, ranks });
    }
    let named_before = |at: usize| dimensions[..at].iter().any(|(name, _)| *name == dimensions[at].0);
    let twice = (0..dimensions.len()).find(|&at| named_before(at));
    twice.map_or(Ok(()), |at| Err(MeshError::Twice(dimensions[at].0.to_owned())))
}

/// The ranks of each line along dimension `at`, the last dimension fastest.
fn lines(dimensions: &[(&str, usize)], at: usize) -> Vec<Vec<Rank>> {
    let product = |dimensions: &[(&str, usize)]| dimensions.iter().map(|(_, size)| size).product::<usize>();
    let (size, stride) = (dimensions[at].1, product(&dimensions[at + 1..]));
    let starts =
        (0..product(&dimensions[..at])).flat_map(|block| (0..stride).map(move |inner| block * size * stride + inner));
    starts.map(|start| (0..size).map(|step| Rank::new(start + step * stride)).collect()).collect()
}

/// Makes a group for each line, on all ranks in the same order, and returns the one with this rank.
fn line_of(world: &ProcessGroup, lines: &[Vec<Rank>], options: &GroupOptions) -> c10d::Result<ProcessGroup> {
    let mut own = None;
    for line in lines {
        own = world.new_group(line, options)?.or(own);
    }
    Ok(own.expect("every rank is on one line"))
}
